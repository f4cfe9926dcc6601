package main

import (
	"fmt"
	"slices"
	"strings"
)

// gone is a command, or a flag of one, that earlier versions had.
type gone struct{ line, instead string }

// goneCommands says what took the place of each.
func goneCommands() []gone {
	return []gone{
		{"adopt", "payonce audit names a capture without a charge: refund it at the provider"},
		{"completion", "payonce --help lists the commands and their flags"},
		{"export", `the view ledger_export has the postings, for psql's \copy`},
		{"plan", "a program refuses to start on a database that lacks a migration, and messages of a type that a worker does not know wait for a newer one"},
		{"inbox discard --dry-run", "payonce inbox list takes the same flags"},
		{"inbox discard --limit-per-second", "a message that is discarded costs no other program anything"},
		{"inbox retry --dry-run", "payonce inbox list takes the same flags"},
		{"inbox retry --limit-per-second", "the handler slots of the workers bound how many retried messages run at a time"},
		{"keys create --addresses", "let the proxy in front of the api refuse addresses"},
		{"keys rotate", "payonce keys create makes the new key, and payonce keys revoke --in 24h ends the old one"},
		{"outbox repair --as-copy", "make a database for tests with payonce migrate and payonce seed"},
		{"outbox repair --since", "payonce audit names captures without a charge, whenever they were made"},
		{"stock set", "payonce stock add takes the difference, below zero too"},
		{"stock show", "payonce stock list shows the articles, and payonce actions who changed them"},
		{"timeline --svg", "payonce console draws the timeline"},
		{"webhooks list", "payonce actions lists the rotations of secrets, and payonce webhooks rotate shows which sign"},
	}
}

// refuseGone returns the sentence about a command line that names a command that is gone, or nil.
func refuseGone(args []string) error {
	for _, g := range goneCommands() {
		command, flag, _ := strings.Cut(g.line, " --")
		words := strings.Fields(command)
		named := slices.ContainsFunc(args, func(arg string) bool { return arg == "--"+flag || strings.HasPrefix(arg, "--"+flag+"=") })
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) && (flag == "" || named) {
			return fmt.Errorf("payonce %s is gone: %s", g.line, g.instead)
		}
	}
	return nil
}
