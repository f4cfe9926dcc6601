package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help says where the script belongs.
func (completionCmd) Help() string {
	return `eval "$(payonce completion bash)" belongs into ~/.bashrc, the same with zsh into ~/.zshrc after compinit, and payonce completion fish | source into ~/.config/fish/config.fish.`
}

// Run prints the script. It lets the shell ask payonce complete, so it is the same for each version.
func (c completionCmd) Run(k *kong.Context) error {
	const ask = "complete -o default -C 'payonce complete' payonce\n"
	_, err := fmt.Fprint(k.Stdout, map[string]string{
		"bash": ask,
		"zsh":  "autoload -U +X bashcompinit && bashcompinit\n" + ask,
		"fish": "complete -c payonce -f -a '(COMP_LINE=(commandline -cp) payonce complete)'\n",
	}[c.Shell])
	return err
}

// completeCmd is what the scripts call.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:""` // not used: COMP_LINE has them
}

// Run prints a line for each word that can stand where the cursor is.
func (completeCmd) Run(k *kong.Context) error {
	line := os.Getenv("COMP_LINE")
	if cursor, err := strconv.ParseUint(os.Getenv("COMP_POINT"), 10, 0); err == nil && cursor < uint64(len(line)) {
		line = line[:cursor]
	}
	_, err := fmt.Fprint(k.Stdout, strings.Join(completions(k.Model.Node, line), "\n"))
	return err
}

// completions are the words that can stand at the end of a command line, in place of the word that
// it ends with: commands, values of a flag or an argument, or flags.
func completions(node *kong.Node, line string) (found []string) {
	start := line[strings.LastIndex(line, " ")+1:]
	var open *kong.Flag // its value comes next
	for word := range strings.FieldsSeq(strings.TrimSuffix(line, start)) {
		value := open != nil
		open = nil
		for _, flag := range flagsOf(node) {
			if word == "--"+flag.Name && !flag.IsBool() && !value {
				open = flag
			}
		}
		for _, child := range node.Children {
			if word == child.Name && !value {
				node = child
				break
			}
		}
	}
	var words []string
	for _, child := range node.Children {
		if !child.Hidden {
			words = append(words, child.Name)
		}
	}
	for _, argument := range node.Positional {
		if argument.Enum != "" {
			words = append(words, argument.EnumSlice()...)
		}
	}
	if open != nil {
		words = open.EnumSlice()
	} else if len(words) == 0 || strings.HasPrefix(start, "-") {
		words = nil
		for _, flag := range flagsOf(node) {
			words = append(words, "--"+flag.Name)
		}
	}
	for _, word := range words {
		if word != "" && strings.HasPrefix(word, start) {
			found = append(found, word)
		}
	}
	return found
}

// flagsOf are the flags of a command and of those that it is part of.
func flagsOf(node *kong.Node) []*kong.Flag { return slices.Concat(node.AllFlags(true)...) }
