package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/program"
)

// console is what a command prints on: results on stdout, remarks on stderr.
type console struct {
	stdout, stderr io.Writer

	json bool  // results are for programs
	err  error // of the result that was printed
}

// show prints a result: as JSON for programs, or as people prints it.
func (c *console) show(v any, people func(p io.Writer)) {
	p := bufio.NewWriter(c.stdout)
	if c.json {
		encoder := json.NewEncoder(p)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		c.err = encoder.Encode(v)
	} else {
		people(p)
	}
	c.err = cmp.Or(c.err, p.Flush())
}

func (c *console) remark(format string, args ...any) { fmt.Fprintf(c.stderr, format, args...) }

// progress prints on stderr, after two seconds and then each ten, what a command does and for how
// long, until ctx ends. It prints nothing of a command that is quick, or says more itself: what is "".
func (c *console) progress(ctx context.Context, what string) {
	for spent, next := time.Duration(0), 2*time.Second; what != "" && loop.Pause(ctx, next, nil); next = 10 * time.Second {
		spent += next
		c.remark("%s, %s\n", what, spent)
	}
}

// columns are how people see a list: words with tabs between them, and a cell for each.
type columns[T any] struct {
	header string
	row    func(T) []any
}

// showList prints {"data": [...]} for programs, or a line for each item for people.
func showList[T any](c *console, list []T, as columns[T]) {
	c.show(map[string]any{"data": append([]T{}, list...)}, func(p io.Writer) { table(p, list, as) })
}

// table prints a list for people.
func table[T any](p io.Writer, list []T, as columns[T]) {
	table := tabwriter.NewWriter(p, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, as.header)
	for _, item := range list {
		var cells []string
		for _, value := range as.row(item) {
			cells = append(cells, cell(value))
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush() // what it prints on keeps the error
}

func cell(value any) string {
	switch at := value.(type) {
	case time.Time:
		return at.Format(time.RFC3339)
	case *time.Time:
		if at == nil {
			return "never"
		}
		return at.Format(time.RFC3339)
	}
	return oneLine(fmt.Sprint(value))
}

// oneLine keeps a text of others, such as a shop's error or an order's ID, from writing
// over the table.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

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
	{"webhooks resend --merchant", "GET /v1/events has a merchant's events, and payonce webhooks resend takes ids of events or charges"},
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
