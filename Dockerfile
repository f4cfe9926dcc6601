# One image holds all four programs; the command chooses: api, worker, sandbox
# or payonce. They share nearly all their layers' bytes, and a release is one
# name, so an api never meets a worker of another version.
#
#   docker build --build-arg COMMIT="$(git rev-parse HEAD)" .

FROM golang:1.26.8 AS build
WORKDIR /src

COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod \
    go mod download

COPY . .
# What --version prints: the repository is not in the image, so Go cannot know it.
ARG COMMIT=
# Without cgo the programs need no libc, and -trimpath keeps the build
# machine's paths out of them: the same source gives the same bytes.
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    program=github.com/payonce/payonce/internal/program && \
    CGO_ENABLED=0 go build -trimpath -buildvcs=false \
      -ldflags="-s -w -X $program.builtCommit=$COMMIT" -o /out/ ./cmd/...

# No shell, no package manager, no root: health checks run "payonce healthcheck".
# This image has no tag of a version: "make pin" writes its digest.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/ /usr/local/bin/
USER 65532:65532
CMD ["payonce", "--help"]
