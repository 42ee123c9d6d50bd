# An image of one static file and the authorities of the web. Clones that encrypt or
# decrypt run cryptsetup, and --require-signed-commits runs git, which are not in it: for those, let the last stage begin with
#
#   FROM debian:bookworm-slim
#   RUN apt-get update && apt-get install -y --no-install-recommends cryptsetup-bin git && rm -rf /var/lib/apt/lists/*
#
# docker build --build-arg VERSION=v1.0.0 --build-arg COMMIT=$(git rev-parse --short=12 HEAD) -t registry.example.com/backing-image-manager:v1.0.0 .
#
# A registry can move a tag. To pin the base image, append @sha256:... with the digest that this
# prints: docker buildx imagetools inspect golang:1.26.8-bookworm
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=(devel)
ARG COMMIT=unknown
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags="-s -w -X main.builtVersion=$VERSION -X main.builtCommit=$COMMIT" -o bin/backing-image-manager ./cmd/backing-image-manager

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /src/bin/backing-image-manager /
# Where the disk belongs to somebody else, say so where the container is started.
USER 65532:65532
ENTRYPOINT ["/backing-image-manager"]
