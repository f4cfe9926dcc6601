package console

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
)

var (
	//go:embed charges.sql
	selectCharges string
	//go:embed named.sql
	selectNamed string
	//go:embed assets/tour.json
	tour []byte
)

const (
	pageRows   = 50
	searchRows = 20_000 // charges that one page of a search reads at most
)

// search is the page of charges, with what was asked.
type search struct {
	Name, Status, Amount string
	Statuses             []domain.Status
	Rows                 []struct {
		Merchant string
		View     domain.View
	}
	Next string // the charge before the next page; "" if there is none
}

func (c *Console) charges(r *http.Request) (any, error) {
	q := r.URL.Query()
	s := search{
		Name: strings.TrimSpace(q.Get("q")), Status: q.Get("status"), Amount: strings.TrimSpace(q.Get("amount")),
		Statuses: []domain.Status{"pending", "requires_action", "succeeded", "failed", "partially_refunded", "refunded"},
	}
	return &s, c.find(r, &s, q.Get("after"), pageRows)
}

// find reads a page of a search.
func (c *Console) find(r *http.Request, s *search, after string, rows int) error {
	sql, args := selectNamed, []any{s.Name, rows}
	if s.Name == "" {
		read := searchRows
		if s.Status+s.Amount == "" {
			read = rows
		}
		sql, args = selectCharges, []any{after, s.Status, s.Amount, read, rows}
	}
	var found []byte
	if err := c.db.Load().QueryRow(r.Context(), sql, args...).Scan(&found); err != nil {
		return err
	}
	return json.Unmarshal(found, s)
}

// history is the page of a charge, and of the tour.
type history struct {
	audit.Timeline

	Name string
}

func (c *Console) charge(r *http.Request) (any, error) {
	return c.history(r, r.PathValue("id"))
}

func (c *Console) history(r *http.Request, name string) (history, error) {
	t, err := audit.ReadTimeline(r.Context(), c.db.Load(), name, "")
	return history{t, name}, err
}

// learn is the tour over a charge, by default the newest that succeeded, of which no refund was
// asked.
func (c *Console) learn(r *http.Request) (any, error) {
	name, newest := r.URL.Query().Get("charge"), search{Status: "succeeded"}
	if name == "" {
		if err := c.find(r, &newest, "", 1); err != nil || len(newest.Rows) == 0 {
			return history{}, err
		}
		name = newest.Rows[0].View.ID
	}
	return c.history(r, name)
}

// step is a step of the tour. Rows are how the kind, text and author of its rows begin.
type step struct {
	Title, File, Func, Text, Dies string
	Rows                          []string
}

// Steps are those of the tour.
func (history) Steps() (steps []step, err error) {
	err = json.Unmarshal(tour, &steps)
	return steps, err
}

// Rows are the entries of a step of the tour.
func (h history) Rows(beginnings []string) (rows []audit.TimelineEntry) {
	for _, e := range h.Entries {
		if slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(e.Kind+" "+e.What+" "+e.Who, b) }) {
			rows = append(rows, e)
		}
	}
	return rows
}
