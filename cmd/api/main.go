// Command api accepts charges over HTTP. It never calls the provider.
package main

import (
	"os"

	"github.com/payonce/payonce/internal/app"
	"github.com/payonce/payonce/internal/app/api"
)

func main() { os.Exit(app.Main(os.Stderr, "api", api.Run)) }
