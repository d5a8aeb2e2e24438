# mugrpo with its sandbox: docker build -t mugrpo . && docker run --gpus all -v $PWD:/work mugrpo train mine.toml
# Rewards of the kind "code" need user namespaces for bubblewrap: add --security-opt seccomp=unconfined.
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap g++ \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir '/src[math,hub,trackio]' && rm -rf /src
WORKDIR /work
ENTRYPOINT ["mugrpo"]
