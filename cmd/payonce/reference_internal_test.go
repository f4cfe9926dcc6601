package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/reference"
	"github.com/payonce/payonce/internal/robustness/demo"
	"github.com/payonce/payonce/internal/testdb"
)

func TestReference_commands(t *testing.T) {
	t.Parallel()
	parser, err := kong.New(new(commands), kong.Name("payonce"))
	testdb.Must(t, err)
	var text strings.Builder
	described := make(map[string]string)
	for _, command := range parser.Model.Leaves(true) {
		fmt.Fprintf(&text, "### %s\n\n%s\n\n", command.Path(), command.Help)
		if usage := command.Summary(); usage != command.Path()+" [flags]" {
			text.WriteString(reference.Code("payonce "+usage) + "\n\n")
		}
		if command.Detail != "" {
			text.WriteString(command.Detail + "\n\n")
		}
		var rows, repeated [][]string
		add := func(name, help string) {
			name = reference.Code(name)
			if first, ok := described[name+help]; ok {
				repeated = append(repeated, []string{name, first})
				return
			}
			described[name+help] = command.Path()
			rows = append(rows, []string{name, help})
		}
		for _, argument := range command.Positional {
			add(argument.Summary(), argument.Help)
		}
		for _, flag := range command.Flags {
			if flag.Name == "json" && command.Name != "demo" {
				continue // the page says above its sections what the flag does
			}
			var value string
			if !flag.IsBool() {
				value = "=" + flag.FormatPlaceHolder()
			}
			help := flag.Help
			if flag.HasDefault {
				help += " Default: " + reference.Code(flag.Default) + "."
			}
			add("--"+flag.Name+value, help)
		}
		text.WriteString(reference.List(rows) + asIn(repeated))
	}
	reference.Section(t, "cli.md", "Commands", text.String())
}

// asIn lists arguments and flags, each with the command that describes it.
func asIn(repeated [][]string) string {
	if len(repeated) == 0 {
		return ""
	}
	slices.SortStableFunc(repeated, func(a, b []string) int { return cmp.Compare(a[1], b[1]) })
	var lists []string
	for i, r := range repeated {
		if i == 0 || r[1] != repeated[i-1][1] {
			lists = append(lists, "as in "+reference.Code(r[1])+": "+r[0])
		} else {
			lists[len(lists)-1] += ", " + r[0]
		}
	}
	return "A" + strings.Join(lists, "; ")[1:] + ".\n\n"
}

func TestReference_guards(t *testing.T) {
	t.Parallel()
	var rows [][]string
	for _, g := range demo.Guards() {
		rows = append(rows, []string{reference.Code(g.Name), g.Kind, g.Fault, cmp.Or(strings.Join(g.Red, "; "), "nothing"), g.Charge})
	}
	header := []string{"guard removed", "kind", "fault", "violated without it", "what happened to the charge"}
	reference.Section(t, "guard-lab.md", "Guards", reference.Table(header, rows))
}
