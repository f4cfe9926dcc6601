// Command worker processes accepted charges: outbox to inbox by Watermill, inbox to the steps
// of fulfillment, and the ledger to its projections.
package main

import (
	"os"

	"github.com/payonce/payonce/internal/program"
)

func main() { os.Exit(program.Main(os.Stderr, "worker", run)) }
