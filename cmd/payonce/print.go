package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"
	"unicode"
)

// console is what a command prints on: results on stdout, remarks on stderr.
type console struct {
	stdout, stderr printer

	every time.Duration // between two lines of progress
}

func newConsole(stdout, stderr io.Writer) *console {
	return &console{stdout: printer{w: stdout}, stderr: printer{w: stderr}, every: 10 * time.Second}
}

// progress prints a line on stderr each ten seconds until end is called: what a long command does,
// what it counts in done, and for how long. Until the end nothing else is printed on stderr.
func (c *console) progress(what string) (done *atomic.Int64, end func()) {
	done = &atomic.Int64{}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(c.every)
		defer tick.Stop()
		for spent := c.every; ; spent += c.every {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			number := ""
			if n := done.Load(); n > 0 {
				number = fmt.Sprintf(": %d", n)
			}
			c.stderr.printf("%s%s, %s\n", what, number, spent)
		}
	}()
	return done, func() { close(stop); <-stopped }
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

// table prints columns for people. A header is words with tabs between them; rows have a
// cell for each.
func (p *printer) table(header string, rows [][]any) {
	table := tabwriter.NewWriter(p, 0, 0, 2, ' ', 0)
	if header != "" {
		fmt.Fprintln(table, header)
	}
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, value := range row {
			cells[i] = cell(value)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush() // the printer has the error
}

// printList prints {"data": [...]} for programs, or a line for each item for people.
func printList[T any](p *printer, asJSON bool, list []T, header string, row func(T) []any) {
	if asJSON {
		p.json(map[string]any{"data": append([]T{}, list...)})
		return
	}
	rows := make([][]any, len(list))
	for i, item := range list {
		rows[i] = row(item)
	}
	p.table(header, rows)
}

func cell(value any) string {
	if at, ok := value.(time.Time); ok {
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

// timeOr is a time in a table, or a word where there is none.
func timeOr(t *time.Time, word string) string {
	if t == nil {
		return word
	}
	return t.Format(time.RFC3339)
}
