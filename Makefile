# Nothing here is needed: "go run ./cmd/payonce demo" and "go test ./..." do not
# know of this file. It only spares typing.

.DEFAULT_GOAL := help
.PHONY: help demo test race lint fmt ci release pin

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## show it: charges under duplicates, faults and kills, then the audit
	go run ./cmd/payonce demo

test: ## every test
	go test ./...

race: ## every test under the race detector (needs a C compiler)
	go test -race ./...

lint: ## what CI lints (golangci-lint v2.15.0)
	golangci-lint run ./...

fmt: ## gofumpt, and imports in order
	golangci-lint fmt ./...

ci: ## everything that a change has to pass, as CI runs it
	bash .ci/run

release: ## dist/: archives for Linux and macOS, an SBOM, checksums
	bash .ci/release

pin: ## write the digests of images and the commits of GitHub actions
	bash .ci/pin
