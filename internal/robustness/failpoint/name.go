package failpoint

import (
	"regexp"
	"strconv"
	"strings"
)

// word is an identifier or a keyword of a statement, in lower case.
type word struct {
	text  string
	depth int  // of parentheses around it
	call  bool // a parenthesis follows
}

// lexeme matches comments, strings, parentheses and words.
var lexeme = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'[^']*'|[()]|["A-Za-z_]["\w.]*`)

// words are those of a statement, without its strings, comments and numbers.
func words(sql string) []word {
	var found []word
	depth, end := 0, 0 // end of the last word
	for _, at := range lexeme.FindAllStringIndex(sql, -1) {
		switch text := sql[at[0]:at[1]]; {
		case text == "(":
			if n := len(found); n > 0 && strings.TrimSpace(sql[end:at[0]]) == "" {
				found[n-1].call = true
			}
			depth++
		case text == ")":
			depth--
		case strings.HasPrefix(text, "--"), strings.HasPrefix(text, "/*"), text[0] == '\'':
		default:
			found = append(found, word{text: strings.ToLower(strings.ReplaceAll(text, `"`, "")), depth: depth})
			end = at[1]
		}
	}
	return found
}

// statementName is a statement's verb and its table. For a statement with named
// queries the name of the first comes before: it distinguishes statements on one
// table.
func statementName(sql string) string {
	w := words(sql)
	if len(w) == 0 {
		return "ping"
	}
	switch w[0].text {
	case "with":
		w = w[1:]
		if len(w) > 0 && w[0].text == "recursive" {
			w = w[1:]
		}
		for i, main := range w {
			switch main.text {
			case "select", "insert", "update", "delete":
				if main.depth == 0 && i > 0 {
					return w[0].text + ": " + mainName(w[i:])
				}
			}
		}
		return "with"
	case "select", "insert", "update", "delete":
		return mainName(w)
	case "set":
		if len(w) > 1 {
			return "set " + w[1].text
		}
	}
	return w[0].text
}

func mainName(w []word) string {
	verb := w[0].text
	if verb == "select" {
		return queryName(w)
	}
	for i, here := range w[1:] {
		switch before := w[i].text; {
		case verb == "update" && (before == "update" && here.text != "only" || before == "only"),
			verb == "insert" && before == "into",
			verb == "delete" && (before == "from" && here.text != "only" || before == "only"):
			return verb + " " + here.text
		}
	}
	return verb
}

// queryName is the first column that a query selects and the table that it reads.
func queryName(w []word) string {
	if len(w) == 1 {
		return w[0].text
	}
	first := w[1].text[strings.LastIndexByte(w[1].text, '.')+1:]
	if table := source(w); table != "" {
		return "select " + first + " from " + table
	}
	return "select " + first
}

// source is the first table that a query reads: its own, or else one of a query
// within it.
func source(w []word) string {
	within := ""
	for i := 2; i < len(w); i++ {
		before, here := w[i-1], w[i]
		from := before.text == "join" || before.text == "from" && w[i-2].text != "distinct"
		switch {
		case !from || here.call || here.text == "select" || here.text == "lateral":
		case before.depth == w[0].depth && here.depth == before.depth:
			return here.text
		case within == "":
			within = here.text
		}
	}
	return within
}

// batchName joins the names of statements, with the number of equal neighbours.
func batchName(statements []string) string {
	var b strings.Builder
	for i := 0; i < len(statements); {
		n := 1
		for i+n < len(statements) && statements[i+n] == statements[i] {
			n++
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(statements[i])
		if n > 1 {
			b.WriteString(" ×")
			b.WriteString(strconv.Itoa(n))
		}
		i += n
	}
	return b.String()
}

// identifier is a part of a path that names one object and no kind.
var identifier = regexp.MustCompile(`^[a-z]+_[0-9A-Za-z]*[0-9][0-9A-Za-z]*$`)

// requestName is a request's method and path, with :id for identifiers.
func requestName(method, path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if identifier.MatchString(part) {
			parts[i] = ":id"
		}
	}
	return method + " " + strings.Join(parts, "/")
}
