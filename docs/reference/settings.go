// Package reference holds the page of docs/reference that programs print and compare with their
// environment.
package reference

import _ "embed"

//go:embed settings.md
var settings string

// Settings returns the text of settings.md, whose sections are generated from the programs.
func Settings() string { return settings }
