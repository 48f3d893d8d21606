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
fields["psirp.message"] = ProtoField.string("psirp.message", "message")
fields["psirp.message.about"] = ProtoField.string("psirp.message.about", "about")
fields["psirp.message.name"] = ProtoField.string("psirp.message.name", "name")
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

-- What payloads say: MessagePack arrays that begin with the number of their kind.

local FUNCTIONS = {
  [0xFF] = "rendezvous", [0xFE] = "topology", [0xFD] = "node", [0xFB] = "link state", [0xFA] = "relay",
  [0xF9] = "relay data", [0xF8] = "pull", [0xF7] = "pulled",
}

local COURIER = { [1] = "Piece", [2] = "Received", [3] = "Challenge" }
local PIECE_PART, PIECE_PARTS, PIECE_BODY = 8, 9, 11

local MESSAGES = {
  [1] = "PublishScope", [2] = "UnpublishScope", [3] = "SubscribeScope", [4] = "UnsubscribeScope",
  [5] = "PublishItem", [6] = "UnpublishItem", [7] = "SubscribeItem", [8] = "UnsubscribeItem", [9] = "KeepAlive",
  [10] = "Declare", [11] = "Explain", [12] = "ListItems", [20] = "Reply", [21] = "ScopePublished",
  [22] = "ScopeUnpublished", [23] = "Explanation", [24] = "DeclarationsRefused", [25] = "ItemList", [30] = "Match",
  [31] = "MatchServed", [32] = "StartPublish", [33] = "StopPublish", [34] = "Served", [35] = "TopologyStarted",
  [40] = "Hello", [42] = "LinkStateReceived", [43] = "LinkStates",
}

local TRANSPORT = { [1] = "Announcement", [2] = "Want", [3] = "Have", [4] = "Ask", [5] = "Retained" }

local PULLS = { [1] = "SeekVersions", [2] = "VersionOffer", [3] = "FetchPieces", [4] = "VersionPiece" }

local MAX_DEPTH, MAX_VALUES, MAX_SHOWN = 16, 4096, 16

-- Reads one value of a byte array: a Lua value, and where the next begins. Raises an error where there is none.
local function unpack_value(bytes, at, depth, budget)
  budget.left = budget.left - 1
  if depth > MAX_DEPTH or budget.left < 0 then
    error("too deep or too long")
  end
  local first = bytes:get_index(at)
  local function number(size)
    local value = 0
    for i = 1, size do
      value = value * 256 + bytes:get_index(at + i)
    end
    return value
  end
  local function text(size, start)
    if start + size > bytes:len() then
      error("cut short")
    end
    return size == 0 and "" or bytes:subset(start, size):raw(), start + size
  end
  local function binary(size, start)
    if start + size > bytes:len() then
      error("cut short")
    end
    return { bytes = size == 0 and "" or tostring(bytes:subset(start, size)):lower(), from = start, size = size },
      start + size
  end
  local function array(count, start)
    local values = { count = count }
    for i = 1, count do
      values[i], start = unpack_value(bytes, start, depth + 1, budget)
    end
    return values, start
  end
  if first <= 0x7F then return first, at + 1 end
  if first >= 0xE0 then return first - 256, at + 1 end
  if first >= 0x90 and first <= 0x9F then return array(first - 0x90, at + 1) end
  if first >= 0xA0 and first <= 0xBF then return text(first - 0xA0, at + 1) end
  if first == 0xC0 then return "-", at + 1 end
  if first == 0xC2 then return false, at + 1 end
  if first == 0xC3 then return true, at + 1 end
  if first == 0xC4 then return binary(number(1), at + 2) end
  if first == 0xC5 then return binary(number(2), at + 3) end
  if first == 0xC6 then return binary(number(4), at + 5) end
  if first == 0xCC then return number(1), at + 2 end
  if first == 0xCD then return number(2), at + 3 end
  if first == 0xCE then return number(4), at + 5 end
  if first == 0xCF then return number(8), at + 9 end
  if first == 0xD9 then return text(number(1), at + 2) end
  if first == 0xDA then return text(number(2), at + 3) end
  if first == 0xDC then return array(number(2), at + 3) end
  if first == 0xDD then return array(number(4), at + 5) end
  error("no value of a message")
end

local function shown(value)
  if type(value) ~= "table" then
    return type(value) == "number" and string.format("%.0f", value) or tostring(value)
  end
  if value.bytes then
    local digits = value.bytes
    return #digits > MAX_SHOWN and digits:sub(1, 8) .. "…" .. digits:sub(-8) or digits
  end
  local parts = {}
  for i = 1, value.count do
    parts[i] = shown(value[i])
  end
  return "[" .. table.concat(parts, ", ") .. "]"
end

local function add_message(tree, buffer, pinfo, about, names, bytes, at)
  local good, value = pcall(function()
    local read, stop = unpack_value(bytes, at, 0, { left = MAX_VALUES })
    if stop ~= bytes:len() or type(read) ~= "table" or not read.count or not names[read[1]] then
      error("no message")
    end
    return read
  end)
  if not good then
    return nil
  end
  local parts = {}
  for i = 2, value.count do
    parts[#parts + 1] = shown(value[i])
  end
  local name = names[value[1]]
  local branch = tree:add(fields["psirp.message"], buffer, name .. "(" .. table.concat(parts, ", ") .. ")")
  branch:add(fields["psirp.message.about"], buffer, about)
  branch:add(fields["psirp.message.name"], buffer, name)
  pinfo.cols.info:append(" " .. about .. ": " .. name)
  return value
end

local function add_payload(tree, buffer, pinfo, rendezvous)
  local bytes = buffer:bytes()
  if rendezvous.type ~= 0x04 then
    add_message(tree, buffer, pinfo, "transport", TRANSPORT, bytes, 0)
    return
  end
  if rendezvous.sid:sub(1, 62) ~= string.rep("ff", 31) then
    return
  end
  local number = tonumber(rendezvous.sid:sub(63), 16)
  local about = FUNCTIONS[number]
  if number == 0xFB then
    add_message(tree, buffer, pinfo, about, MESSAGES, bytes, 0)
  elseif number == 0xF8 or number == 0xF7 then
    add_message(tree, buffer, pinfo, about, PULLS, bytes, 0)
  elseif number and number >= 0xFD then
    local said = add_message(tree, buffer, pinfo, about, COURIER, bytes, 0)
    if said and said[1] == 1 and said[PIECE_PART] == 0 and said[PIECE_PARTS] == 1 then
      local body = said[PIECE_BODY]
      if type(body) == "table" and body.size and body.size > 0 then
        local range = buffer(body.from, body.size)
        add_message(tree, range, pinfo, about, MESSAGES, range:bytes(), 0)
      end
    end
  end
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
  local seen, rendezvous = {}, nil
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
    if kind == "rendezvous" then
      rendezvous = { type = found, sid = tostring(buffer(offset + 2, 32):bytes()):lower() }
    end
    named_at = offset + 1
    expected = buffer(named_at, 1):uint()
    offset = offset + sizes[kind]
  end
  if offset < buffer:len() then
    tree:add(fields[expected == PAYLOAD and "psirp.payload" or "psirp.padding"], buffer(offset))
    if expected == PAYLOAD and rendezvous then
      add_payload(tree, buffer(offset), pinfo, rendezvous)
    end
  end
end

DissectorTable.get("ethertype"):add(0xACDC, psirp)
DissectorTable.get("wtap_encap"):add(wtap.USER0, psirp)
