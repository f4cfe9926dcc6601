package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/payonce/payonce/internal/loop"
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
