-- PSIRP frames (EtherType 0xACDC) in Wireshark and tshark.
--
--   wireshark -X lua_script:psirp.lua trace.pcap
--   tshark    -X lua_script:psirp.lua -r trace.pcap -V
--
-- Shows the same fields under the same names as `psph dissect`. The chain is followed under the same rules as the
-- codec: an unknown next header, a header cut short, a type byte that differs from the announced one, a proto other
-- than 1 and a second header of one kind are malformed.

local psirp = Proto("psirp", "PSIRP")

local NAMES = {
  [0x00] = "none",
  [0x01] = "forwarding",
  [0x02] = "subscribe data",
  [0x03] = "subscribe metadata",
  [0x04] = "publish data",
  [0x05] = "publish metadata",
  [0x06] = "metadata",
  [0x07] = "authentication",
  [0xF0] = "payload",
}

local NONE, FORWARDING, PAYLOAD = 0x00, 0x01, 0xF0
local PROTO, PROTO_OFFSETS = 0x01, { forwarding = 4, rendezvous = 106 }

-- Name, bytes and form: "?" is a byte string, "x" a number shown in hex, "type" one of NAMES, none a plain number.
local LAYOUTS = {
  forwarding = {
    { "ttl", 1 }, { "d", 1 }, { "proto", 1 }, { "reserved", 5, "?" }, { "fid", 32, "?" },
  },
  rendezvous = {
    { "sid", 32, "?" }, { "rid", 32, "?" }, { "vrid", 32, "?" }, { "seqnum", 8 }, { "proto", 1 },
    { "reserved", 5, "?" },
  },
  metadata = {
    { "sid", 32, "?" }, { "rid", 32, "?" }, { "vrid", 32, "?" }, { "collected_fid", 32, "?" }, { "length", 8 },
    { "max_seqnum", 8 }, { "rendezvous_type", 1, "type" }, { "flags", 1, "x" }, { "reserved", 4, "?" },
  },
  authentication = {
    { "signer", 32, "?" }, { "timestamp", 8 }, { "sequence", 8 }, { "expiry", 8 }, { "flags", 1, "x" },
    { "reserved", 5, "?" }, { "signature", 64, "?" },
  },
}

local KINDS = {
  [0x01] = "forwarding",
  [0x02] = "rendezvous", [0x03] = "rendezvous", [0x04] = "rendezvous", [0x05] = "rendezvous",
  [0x06] = "metadata",
  [0x07] = "authentication",
}

local fields, sizes = {}, {}

local function declare(abbreviation, name, size, form)
  if form == "?" then
    fields[abbreviation] = ProtoField.bytes(abbreviation, name)
  elseif form == "type" then
    fields[abbreviation] = ProtoField.uint8(abbreviation, name, base.HEX, NAMES)
  elseif form == "x" then
    fields[abbreviation] = ProtoField.uint8(abbreviation, name, base.HEX)
  elseif size == 8 then
    fields[abbreviation] = ProtoField.uint64(abbreviation, name, base.DEC)
  else
    fields[abbreviation] = ProtoField.uint8(abbreviation, name, base.DEC)
  end
end

for kind, layout in pairs(LAYOUTS) do
  local size = 2
  declare("psirp." .. kind .. ".type", "type", 1, "type")
  declare("psirp." .. kind .. ".next", "next", 1, "type")
  for _, field in ipairs(layout) do
    declare("psirp." .. kind .. "." .. field[1], field[1], field[2], field[3])
    size = size + field[2]
  end
  sizes[kind] = size
end
fields["psirp.payload"] = ProtoField.bytes("psirp.payload", "payload")
fields["psirp.padding"] = ProtoField.bytes("psirp.padding", "padding")
fields["psirp.error"] = ProtoField.string("psirp.error", "error")

for _, field in pairs(fields) do
  table.insert(psirp.fields, field)
end

local malformed = ProtoExpert.new("psirp.malformed", "malformed PSIRP frame", expert.group.MALFORMED, expert.severity.ERROR)
psirp.experts = { malformed }

local function add_header(tree, buffer, offset, kind)
  local header_type = buffer(offset, 1):uint()
  local title = "PSIRP " .. kind
  if kind == "rendezvous" then
    title = "PSIRP " .. NAMES[header_type]
  end
  local branch = tree:add(psirp, buffer(offset, sizes[kind]), title)
  branch:add(fields["psirp." .. kind .. ".type"], buffer(offset, 1))
  branch:add(fields["psirp." .. kind .. ".next"], buffer(offset + 1, 1))
  local at = offset + 2
  for _, field in ipairs(LAYOUTS[kind]) do
    branch:add(fields["psirp." .. kind .. "." .. field[1]], buffer(at, field[2]))
    at = at + field[2]
  end
end

-- The column text: hex, with "::" for leading zero bytes; only the ends when that is long.
local function short_id(range)
  local digits, zeros = tostring(range:bytes()):lower(), ""
  while digits:sub(1, 2) == "00" do
    digits, zeros = digits:sub(3), "::"
  end
  if #digits > 16 then
    digits = digits:sub(1, 8) .. "…" .. digits:sub(-8)
  end
  return zeros .. digits
end

local function fail(tree, buffer, pinfo, offset, reason)
  local text = "byte " .. offset .. ": " .. reason
  local range = offset < buffer:len() and buffer(offset) or buffer()
  tree:add(fields["psirp.error"], range, text):add_proto_expert_info(malformed, text)
  pinfo.cols.info:append(" [malformed: " .. text .. "]")
end

function psirp.dissector(buffer, pinfo, tree)
  pinfo.cols.protocol = "PSIRP"
  pinfo.cols.info = ""
  local offset, named_at, expected = 0, 0, FORWARDING
  local seen = {}
  while expected ~= NONE and expected ~= PAYLOAD do
    local kind = KINDS[expected]
    if kind == nil then
      return fail(tree, buffer, pinfo, named_at, string.format("next header 0x%02x is not known", expected))
    end
    if seen[kind] then
      return fail(tree, buffer, pinfo, named_at, "a second " .. kind .. " header")
    end
    seen[kind] = true
    local there = buffer:len() - offset
    if there < sizes[kind] then
      local text = "%s header cut short: %d bytes expected, %d there"
      return fail(tree, buffer, pinfo, offset, string.format(text, kind, sizes[kind], there))
    end
    local found = buffer(offset, 1):uint()
    if found ~= expected then
      local text = "header type 0x%02x where 0x%02x was announced"
      return fail(tree, buffer, pinfo, offset, string.format(text, found, expected))
    end
    local proto_at = PROTO_OFFSETS[kind] and offset + PROTO_OFFSETS[kind]
    if proto_at and buffer(proto_at, 1):uint() ~= PROTO then
      local text = "%s header has proto 0x%02x: 0x%02x expected"
      return fail(tree, buffer, pinfo, proto_at, string.format(text, kind, buffer(proto_at, 1):uint(), PROTO))
    end
    add_header(tree, buffer, offset, kind)
    if kind == "rendezvous" or kind == "metadata" then
      local sid, rid = short_id(buffer(offset + 2, 32)), short_id(buffer(offset + 34, 32))
      pinfo.cols.info:append(string.format(" %s %s/%s", NAMES[found], sid, rid))
    elseif kind == "forwarding" then
      local text = "ttl %d fid %s table %d"
      local ttl, fid, index = buffer(2, 1):uint(), short_id(buffer(10, 31)), buffer(41, 1):uint()
      pinfo.cols.info:append(string.format(text, ttl, fid, index))
    else
      pinfo.cols.info:append(" signed by " .. short_id(buffer(offset + 2, 32)))
    end
    named_at = offset + 1
    expected = buffer(named_at, 1):uint()
    offset = offset + sizes[kind]
  end
  if offset < buffer:len() then
    tree:add(fields[expected == PAYLOAD and "psirp.payload" or "psirp.padding"], buffer(offset))
  end
end

DissectorTable.get("ethertype"):add(0xACDC, psirp)
DissectorTable.get("wtap_encap"):add(wtap.USER0, psirp)
