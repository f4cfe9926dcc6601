package main

import "errors"

// replaced says what takes the place of a command that this program does not have.
var replaced = map[string]string{
	"adopt": "there is no command adopt: payonce audit names each capture without a charge until an operator refunds it at the provider",
}

// checkReplaced refuses a command line that begins with such a command.
func checkReplaced(args []string) error {
	if len(args) == 0 || replaced[args[0]] == "" {
		return nil
	}
	return errors.New(replaced[args[0]])
}
