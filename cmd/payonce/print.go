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

// printJSON prints for programs.
func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

// printTable prints columns for people. A header is words with tabs between them; rows
// have a cell for each.
func printTable(w io.Writer, header string, rows [][]any) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
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
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print a table: %w", err)
	}
	return nil
}

// printList prints {"data": [...]} for programs, or a line for each item for people.
func printList[T any](w io.Writer, asJSON bool, list []T, header string, row func(T) []any) error {
	if asJSON {
		return printJSON(w, map[string]any{"data": append([]T{}, list...)})
	}
	rows := make([][]any, len(list))
	for i, item := range list {
		rows[i] = row(item)
	}
	return printTable(w, header, rows)
}

func cell(value any) string {
	switch value := value.(type) {
	case time.Time:
		return value.Format(time.RFC3339)
	default:
		return oneLine(fmt.Sprint(value))
	}
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
