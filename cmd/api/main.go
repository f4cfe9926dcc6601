// Command api accepts charges over HTTP. It never calls the provider.
package main

import (
	"os"

	"github.com/payonce/payonce/internal/program"
)

func main() { os.Exit(program.Main(os.Stderr, "api", run)) }
