package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/program"
)

// newParser reads command lines into cli. Errors of Parse are the caller's mistakes.
func newParser(cli *commands, options ...kong.Option) *kong.Kong {
	return kong.Must(cli, append(options,
		kong.Name("payonce"),
		kong.Description("An event-sourced payment service in which every charge takes effect exactly once."),
		kong.Vars{"version": program.Version("payonce")},
		kong.Help(printHelp),
		kong.PostBuild(func(k *kong.Kong) error {
			for _, leaf := range k.Model.Leaves(true) {
				leaf.Detail = "Example:\n\n    payonce " + leaf.Tag.Get("example")
			}
			return nil
		}))...)
}

// printHelp prints what kong knows of one command, and one screen of all: of each an example, and
// the first sentence of its help.
func printHelp(options kong.HelpOptions, parsed *kong.Context) error {
	if parsed.Selected() != nil {
		return kong.DefaultHelpPrinter(options, parsed)
	}
	p, group := tabwriter.NewWriter(parsed.Stdout, 0, 0, 2, ' ', 0), ""
	fmt.Fprintf(p, "payonce: %s\n\n", parsed.Model.Help)
	fmt.Fprint(p, "Each line is an example, without \"payonce\". COMMAND --help explains a command and its flags, --version\n"+
		"prints the version. With --json a command prints its result for programs. Exit codes: 0 done, 1 failed or\n"+
		"found something, 2 wrong command line.\n")
	for _, leaf := range parsed.Model.Leaves(true) {
		if g := leaf.ClosestGroup().Key; g != group {
			group = g
			fmt.Fprintf(p, "\n%s\n", g)
		}
		summary, _, _ := strings.Cut(leaf.Help, ". ")
		fmt.Fprintf(p, "  %s\t%s\n", leaf.Tag.Get("example"), strings.TrimSuffix(summary, "."))
	}
	return p.Flush()
}

// goneCommands are commands, and flags of some, that earlier versions had, and what took the place of each.
var goneCommands = []struct{ line, instead string }{
	{"adopt", "payonce audit names a capture without a charge: refund it at the provider"},
	{"completion", "payonce --help lists the commands and their flags"},
	{"export", `the view ledger_export has the postings, for psql's \copy`},
	{"plan", "a program refuses to start on a database that lacks a migration, and messages of a type that a worker does not know wait for a newer one"},
	{"keys create --addresses", "let the proxy in front of the api refuse addresses"},
	{"keys rotate", "payonce keys create makes the new key, and payonce keys revoke --in 24h ends the old one"},
	{"outbox repair --as-copy", "make a database for tests with payonce migrate and payonce seed"},
	{"outbox repair --since", "payonce audit names captures without a charge, whenever they were made"},
	{"stock set", "payonce stock add takes the difference, below zero too"},
	{"stock show", "payonce stock list shows the articles, and payonce actions who changed them"},
	{"timeline --svg", "payonce console draws the timeline"},
	{"webhooks list", "payonce actions lists the rotations of secrets, and payonce webhooks rotate shows which sign"},
}

// refuseGone returns the sentence about a command line that names a command that is gone, or nil.
func refuseGone(args []string) error {
	words := strings.Join(slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, "-") }), " ")
	for _, g := range goneCommands {
		command, flag, ofFlag := strings.Cut(g.line, " --")
		named := slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg+"=", "--"+flag+"=") })
		if strings.HasPrefix(words+" ", command+" ") && (named || !ofFlag) {
			return fmt.Errorf("payonce %s is gone: %s", g.line, g.instead)
		}
	}
	return nil
}
