# The gateway, and (target `analytics`) the machine that makes reports of its traces.
#   docker build -t psph .
#   docker build -t psph-analytics --target analytics .
# A container needs no capability with UDP links. Raw Ethernet links need NET_RAW, and nothing else does:
# see deploy/compose/raw-ethernet.yml.

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS build
WORKDIR /src
RUN python -m venv /opt/psph
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY exchange exchange
COPY identifiers identifiers
COPY storage storage
COPY psirp_stack psirp_stack
COPY serving serving
COPY push_hub push_hub
COPY perf perf
COPY gateway gateway
RUN /opt/psph/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt . \
    && /opt/psph/bin/pip uninstall --yes --quiet pip setuptools

FROM build AS build-analytics
RUN python -m pip --python /opt/psph/bin/python install --no-cache-dir --disable-pip-version-check \
    -c constraints.txt '.[analytics]'

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS analytics
COPY --from=build-analytics /opt/psph /opt/psph
RUN groupadd --gid 10001 psph && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data psph \
    && install -d -o psph -g psph -m 0700 /data /traces
ENV PATH=/opt/psph/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /data
VOLUME /data
USER 10001:10001
ENTRYPOINT ["psph"]
CMD ["report", "--help"]

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS gateway
COPY --from=build /opt/psph /opt/psph
RUN groupadd --gid 10001 psph && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data psph \
    && install -d -o psph -g psph -m 0700 /data /traces
LABEL org.opencontainers.image.title="psph" \
    org.opencontainers.image.description="The Pub/Sub Proxy Hub: a WebSub hub joined to a PSIRP information-centric network" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.base.name="docker.io/library/python:3.11.14-slim-bookworm"
# Without a file: the hub listens at every address of the container, and data is in the volume.
ENV PATH=/opt/psph/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PSPH_HOST=0.0.0.0 XDG_STATE_HOME=/data
WORKDIR /data
VOLUME /data
EXPOSE 8080
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["psph"]
CMD ["gateway", "-c", "/etc/psph/gateway.toml"]
