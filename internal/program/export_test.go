package program

// What tests reach past its constants.
var (
	Misspelled  = func(environ map[string]string) error { return misspelled(environ, Known()) }
	Gone        = gone
	ServeWithin = serve
	Bounded     = bounded
)

// Known are the settings of all programs.
func Known() (names []string) {
	for _, s := range settingsOf("") {
		names = append(names, s[1])
	}
	return names
}
