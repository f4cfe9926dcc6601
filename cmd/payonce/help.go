package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/program"
)

// newParser reads command lines into cli. Errors of Parse are the caller's mistakes.
func newParser(cli *commands, options ...kong.Option) *kong.Kong {
	return kong.Must(cli, append(options,
		kong.Name("payonce"),
		kong.Description("An event-sourced payment service in which every charge takes effect exactly once. "+
			"Exit codes: 0 done, 1 failed or found something, 2 wrong command line."),
		kong.Vars{"version": program.Version("payonce")},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.PostBuild(func(k *kong.Kong) error {
			for _, leaf := range k.Model.Leaves(true) {
				leaf.Detail = "Example:\n\n    payonce " + leaf.Tag.Get("example")
			}
			return nil
		}))...)
}

// goneCommands are commands, and flags of some, that earlier versions had, and what took the place of each.
var goneCommands = []struct{ line, instead string }{
	{"adopt", "payonce audit names a capture without a charge: refund it at the provider"},
	{"completion", "payonce --help lists the commands and their flags"},
	{"export", `the view ledger_export has the postings, for psql's \copy`},
	{"plan", "a program refuses to start on a database that lacks a migration, and messages of a type that a worker does not know wait for a newer one"},
	{"keys rotate", "payonce keys create makes the new key, and payonce keys revoke --in 24h ends the old one"},
	{"outbox repair --as-copy", "make a database for tests with payonce migrate and payonce seed"},
	{"outbox repair --since", "payonce audit names captures without a charge, whenever they were made"},
	{"stock set", "payonce stock add takes the difference, below zero too"},
	{"stock show", "payonce stock list shows the articles, and payonce actions who changed them"},
	{"webhooks list", "payonce actions lists the rotations of secrets, and payonce webhooks rotate shows which sign"},
}

// refuseGone returns the sentence about a command line that names a command that is gone, or nil.
func refuseGone(args []string) error {
	for _, g := range goneCommands {
		command, flag, _ := strings.Cut(g.line, " --")
		words := strings.Fields(command)
		named := slices.ContainsFunc(args, func(arg string) bool { return arg == "--"+flag || strings.HasPrefix(arg, "--"+flag+"=") })
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) && (flag == "" || named) {
			return fmt.Errorf("payonce %s is gone: %s", g.line, g.instead)
		}
	}
	return nil
}
