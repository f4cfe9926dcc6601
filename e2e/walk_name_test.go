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
		return slices.DeleteFunc(names(statements), func(name string) bool { return slices.Contains(settings, name) })
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

// ours matches the name that a statement of ours begins with.
var ours = regexp.MustCompile(`^\s*-- (\S+)\n`)

// statementName is the name of a statement of ours, and the first word of any other, such as
// begin, commit and listen; of set the second too.
func statementName(sql string) string {
	if name := ours.FindStringSubmatch(sql); name != nil {
		return name[1]
	}
	words := strings.Fields(strings.ToLower(strings.TrimPrefix(sql, "--"))) // the driver's ping is a comment
	if len(words) > 1 && words[0] == "set" {
		return "set " + words[1]
	}
	return words[0]
}

// Names of what a processor sends by its own timetable: what goes along with it is a matter of time.
const (
	looksForWork = "inbox.readNext" // and repairs at times, and claims where a slot is free
	claims       = "inbox.claimDue"
)

const awaitsAnswer = "groupcommit.awaitAnswer"

// settings are statements that set something for their transaction.
var settings = []string{"postgres.setMerchant", "groupcommit.setTenant", "groupcommit.setLockTimeout", "inbox.setLockTimeout"}

// names leaves out the query that a commit sends before statements with results, and what goes along
// by chance.
func names(statements []string) (names []string) {
	for _, sql := range statements {
		if name := statementName(sql); name != awaitsAnswer {
			names = append(names, name)
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
