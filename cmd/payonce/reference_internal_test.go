package main

import (
	"cmp"
	"fmt"
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
	for _, command := range parser.Model.Leaves(true) {
		fmt.Fprintf(&text, "### %s\n\n%s\n\n```\npayonce %s\n```\n\n", command.Path(), command.Help, command.Summary())
		if command.Detail != "" {
			text.WriteString(command.Detail + "\n\n")
		}
		var rows [][]string
		for _, argument := range command.Positional {
			rows = append(rows, []string{reference.Code(argument.Summary()), reference.Code(argument.Default), argument.Help})
		}
		for _, flag := range command.Flags {
			var value string
			if !flag.IsBool() {
				value = "=" + flag.FormatPlaceHolder()
			}
			rows = append(rows, []string{reference.Code("--" + flag.Name + value), reference.Code(flag.Default), flag.Help})
		}
		text.WriteString(reference.Table([]string{"argument or flag", "default", "meaning"}, rows))
	}
	reference.Section(t, "cli.md", "Commands", text.String())
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
