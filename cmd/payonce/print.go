package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/audit"
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

// list is the result of a command that prints a list, as programs get it.
type list[T any] struct {
	Secret string `json:"secret,omitempty"` // that was made, and is shown this once
	Data   []T    `json:"data"`
}

// showList prints items, and of them columns for people, if they were read without an error.
func showList[T any](c *console, items []T, err error, columns string) error {
	if err == nil {
		c.show(list[T]{Data: append([]T{}, items...)}, func(p io.Writer) { table(p, items, columns) })
	}
	return err
}

// showOne prints one result, and columns of it for people.
func showOne[T any](c *console, v T, columns string) {
	c.show(v, func(p io.Writer) { table(p, []T{v}, columns) })
}

// showSecret prints a secret that was made, or "", alone on stdout for people, and what holds now on stderr.
func showSecret[T any](c *console, secret string, now []T, columns string) {
	c.show(list[T]{secret, append([]T{}, now...)}, func(p io.Writer) {
		table(c.stderr, now, columns)
		if secret != "" {
			c.remark("what stdout has is shown this once: no command shows it again\n")
			fmt.Fprintln(p, secret)
		}
	})
}

// table prints items for people. Columns are the names of members that the items have as JSON.
func table[T any](p io.Writer, items []T, columns string) {
	names := strings.Fields(columns)
	table := tabwriter.NewWriter(p, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.ToUpper(strings.ReplaceAll(strings.Join(names, "\t"), "_", " ")))
	for _, item := range items {
		var members audit.Detail
		text, _ := json.Marshal(item)
		_ = json.Unmarshal(text, &members) // of an item that cannot be written, which is none of ours, all are missing
		var cells []string
		for _, name := range names {
			cells = append(cells, cell(members[name]))
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush() // what it prints on keeps the error
}

// cell is a member in a table.
func cell(member any) string {
	switch member := member.(type) {
	case nil:
		return "-"
	case map[string]any:
		return oneLine(audit.Detail(member).String())
	case []any:
		var words []string
		for _, word := range member {
			words = append(words, cell(word))
		}
		return strings.Join(words, ", ")
	}
	return cmp.Or(oneLine(fmt.Sprint(member)), "-")
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

// goneCommands are commands that earlier versions had, and what took the place of each.
var goneCommands = map[string]string{
	"adopt":                   "payonce audit names a capture without a charge: refund it at the provider",
	"audit --no-provider":     "leave STRIPE_SECRET_KEY unset",
	"export":                  `the view ledger_export has the postings, for psql's \copy`,
	"plan":                    "a program refuses to start on a database that lacks a migration, and messages of a type that a worker does not know wait for a newer one",
	"inbox list --limit":      "head shows the first lines",
	"keys rotate":             "payonce keys create makes the new key, and payonce keys revoke --in 24h ends the old one",
	"outbox repair --as-copy": "make a database for tests with payonce migrate and payonce seed",
	"outbox repair --since":   "payonce audit names captures without a charge, whenever they were made",
	"stock set":               "payonce stock add takes the difference, below zero too",
	"stock show":              "payonce stock list shows the articles, and payonce actions who changed them",
	"webhooks list":           "payonce actions lists the rotations of secrets, and payonce webhooks rotate shows which sign",
}

// refuseGone returns the sentence about a command line that has a command or a flag that is gone, or nil.
func refuseGone(args []string) error {
	line := strings.ReplaceAll(strings.Join(args, " "), "=", " ") + " "
	for gone, instead := range goneCommands {
		command, _, _ := strings.Cut(gone+" ", "--")
		if strings.HasPrefix(strings.TrimPrefix(line, "--json "), command) && strings.Contains(line, strings.TrimPrefix(gone+" ", command)) {
			return fmt.Errorf("payonce %s is gone: %s", gone, instead)
		}
	}
	return nil
}
