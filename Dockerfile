# syntax=docker/dockerfile:1

# One image holds all four programs; the command chooses: api, worker, sandbox
# or payonce. They share nearly all their layers' bytes, and a release is one
# name, so an api never meets a worker of another version.

FROM golang:1.26 AS build
WORKDIR /src

COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod \
    go mod download

COPY . .
# Without cgo the programs need no libc, and -trimpath keeps the build
# machine's paths out of them: the same source gives the same bytes.
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w' -o /out/ ./cmd/...

# No shell, no package manager, no root: health checks run "payonce healthcheck".
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/ /usr/local/bin/
CMD ["payonce", "--help"]
