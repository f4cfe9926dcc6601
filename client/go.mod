module github.com/payonce/payonce/client

go 1.26.0

toolchain go1.26.8

require (
	github.com/cenkalti/backoff/v5 v5.0.3
	github.com/google/uuid v1.6.0
)
