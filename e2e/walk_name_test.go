package e2e_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/payonce/payonce/internal/robustness/failpoint"
)

// prepares begins the names of round trips that only prepare statements.
const prepares = "prepare "

// trip names a round trip with the database.
func (p *crashPlan) trip(t *failpoint.Trip) *roundTrip {
	trip := &roundTrip{kind: sqlTrip, opens: t.Opens, closes: t.Closes}
	kind := slices.Index(p.settings, t.Session.Settings)
	switch {
	case t.Connects:
		trip.kind, trip.minor = connectTrip, kind >= 0
		if kind < 0 {
			kind = len(p.settings)
			p.settings = append(p.settings, t.Session.Settings)
		}
		trip.name = "connect"
	case len(t.Executed) > 0:
		trip.name = batchName(names(t.Executed))
		// Every connection of a pool may begin with it.
		trip.minor = len(t.Executed) == 1 && strings.HasPrefix(trip.name, "set ") && len(p.fresh(t.Executed)) == 0
	case len(t.Prepared) > 0:
		trip.name, trip.minor = p.preparation(t.Prepared)
	case t.Forgets:
		trip.name = "close"
	default:
		trip.name = "sync"
	}
	if kind > 0 && (t.Connects || t.Opens || t.Closes) {
		trip.name += " (session " + strconv.Itoa(kind+1) + ")"
	}
	return trip
}

// preparation names a round trip that only prepares statements, by those that no
// connection of this life has prepared before: which connection does so first is
// chance. Which batch is the first to set something is chance too, so a query that
// sets something is no name.
func (p *crashPlan) preparation(statements []string) (name string, minor bool) {
	stable := func(statements []string) []string {
		return slices.DeleteFunc(names(statements), func(name string) bool { return name == "select set_config" })
	}
	fresh := stable(p.fresh(statements))
	all := names(statements)
	if len(fresh) == 0 || slices.Equal(all, []string{looksForWork}) || slices.Equal(fresh, []string{claims}) {
		return prepares + batchName(stable(statements)), true
	}
	return prepares + batchName(fresh), false
}

// fresh returns those of the texts that this life has not sent before.
func (p *crashPlan) fresh(texts []string) (unseen []string) {
	for _, text := range texts {
		if !p.sent[text] {
			p.sent[text] = true
			unseen = append(unseen, text)
		}
	}
	return unseen
}

var (
	named   = regexp.MustCompile(`^\s*-- ([a-z]+\.[a-z_]+)\n`)       // a statement of the product may say its name
	unnamed = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'[^']*'|"`) // comments, strings, quotes
	query   = regexp.MustCompile(`^with\s+(?:recursive\s+)?([\w.]+)`)
	verb    = regexp.MustCompile(`\b(select|insert|update|delete)\b`)
	changed = regexp.MustCompile(`^(insert|update|delete)\s+(?:into\s+|from\s+)?(?:only\s+)?([\w.]+)`)
	column  = regexp.MustCompile(`^select\W*(?:\w+\.)*(\w+)`)
	source  = regexp.MustCompile(`(distinct\s+)?\b(?:from|join)\s+([a-z_][\w.]*)\s*(\(?)`)
	setting = regexp.MustCompile(`^set\s+\w+`)
	first   = regexp.MustCompile(`[a-z_]\w*`)
)

// statementName is the name that a statement says, or else its verb and its table. For a statement with named
// queries the name of the first comes before: it distinguishes statements on one
// table.
func statementName(sql string) string {
	if name := named.FindStringSubmatch(sql); name != nil {
		return name[1]
	}
	sql = strings.TrimSpace(strings.ToLower(unnamed.ReplaceAllString(sql, "")))
	top := topLevel(sql)
	if with := query.FindStringSubmatchIndex(top); with != nil {
		main := verb.FindStringIndex(top[with[1]:])
		if main == nil {
			return "with"
		}
		at := with[1] + main[0]
		return top[with[2]:with[3]] + ": " + mainName(sql[at:], top[at:])
	}
	return mainName(sql, top)
}

// topLevel is the statement with blanks in place of what stands in parentheses.
func topLevel(sql string) string {
	text, depth := []byte(sql), 0
	for i, b := range text {
		if b == ')' {
			depth--
		}
		if depth > 0 {
			text[i] = ' '
		}
		if b == '(' {
			depth++
		}
	}
	return string(text)
}

func mainName(sql, top string) string {
	if m := changed.FindStringSubmatch(top); m != nil {
		return m[1] + " " + m[2]
	}
	if m := column.FindStringSubmatch(sql); m != nil {
		name := "select " + m[1]
		for _, text := range []string{top, sql} { // its own tables before those of a query within it
			for _, m := range source.FindAllStringSubmatch(text, -1) {
				if m[1] == "" && m[3] == "" && m[2] != "lateral" && m[2] != "select" {
					return name + " from " + m[2]
				}
			}
		}
		return name
	}
	if m := setting.FindString(top); m != "" {
		return strings.Join(strings.Fields(m), " ")
	}
	if word := first.FindString(top); word != "" {
		return word
	}
	return "ping"
}

// Names of what a processor sends by its own timetable: what goes along with it is a matter of time.
const (
	looksForWork = "select now from inbox" // and repairs at times, and claims where a slot is free
	claims       = "due: select id from claimed"
)

// names leaves out the empty query, which a commit sends before statements with results, and what
// goes along by chance.
func names(statements []string) (names []string) {
	for _, sql := range statements {
		if sql != "select" {
			names = append(names, statementName(sql))
		}
	}
	if slices.Contains(names, looksForWork) {
		return []string{looksForWork}
	}
	if len(names) > 1 {
		names = slices.DeleteFunc(names, func(name string) bool { return name == claims })
	}
	return names
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

// identifier is a part of a path that names one object and no kind. It is random, and one in
// hundreds has no digit.
var identifier = regexp.MustCompile(`^[a-z]+_[0-9A-Za-z]*[0-9A-Z][0-9A-Za-z]*$`)

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
