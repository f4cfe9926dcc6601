module github.com/payonce/payonce/client

go 1.26.0

toolchain go1.26.8

require (
	github.com/cenkalti/backoff/v5 v5.0.3
	github.com/google/uuid v1.6.0
	github.com/oapi-codegen/runtime v1.9.0
)

require github.com/apapsch/go-jsonmerge/v2 v2.0.0 // indirect
