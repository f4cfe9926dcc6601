package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// console is what a command prints on: results on stdout, remarks on stderr.
type console struct {
	stdout, stderr printer

	json bool // results are for programs
}

func newConsole(stdout, stderr io.Writer) *console {
	return &console{stdout: printer{w: stdout}, stderr: printer{w: stderr}}
}

// show prints a result: as JSON for programs, or as people prints it.
func (c *console) show(v any, people func(p *printer)) {
	if c.json {
		c.stdout.json(v)
		return
	}
	people(&c.stdout)
}

// columns are how people see a list: words with tabs between them, and a cell for each.
type columns[T any] struct {
	header string
	row    func(T) []any
}

// showList prints {"data": [...]} for programs, or a line for each item for people.
func showList[T any](c *console, list []T, as columns[T]) {
	c.show(map[string]any{"data": append([]T{}, list...)}, func(p *printer) { table(p, list, as) })
}

// printer prints on one stream. It keeps the first error, after which it prints nothing.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) Write(text []byte) (n int, err error) {
	if p.err == nil {
		n, p.err = p.w.Write(text)
	}
	return n, p.err
}

func (p *printer) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// json prints for programs.
func (p *printer) json(v any) {
	encoder := json.NewEncoder(p)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		p.err = err
	}
}

// table prints a list for people.
func table[T any](p *printer, list []T, as columns[T]) {
	table := tabwriter.NewWriter(p, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, as.header)
	for _, item := range list {
		var cells []string
		for _, value := range as.row(item) {
			cells = append(cells, cell(value))
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush() // the printer has the error
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
