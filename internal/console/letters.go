package console

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/doorbell"
)

const longestReason = 500 // characters

// letters are the page of dead letters, with what operators did lately, or of one message,
// whatever its status is.
type letters struct {
	List    bool
	Entries []inbox.Entry
	Next    int64 // the message before the next page; 0 if there is none
	Actions []audit.Action
}

func (c *Console) letters(r request) (any, error) {
	entries, err := inbox.List(r.Context(), c.db.Load(), inbox.StatusDead, number(r.URL.Query().Get("after")), pageRows)
	if err != nil {
		return nil, err
	}
	page := letters{List: true, Entries: entries}
	if len(entries) == pageRows {
		page.Next = entries[pageRows-1].Number
	}
	page.Actions, err = audit.ListActions(r.Context(), c.db.Load(), "", time.Time{}, pageRows)
	return page, err
}

func (c *Console) letter(r request) (any, error) {
	e, err := inbox.Show(r.Context(), c.db.Load(), number(r.PathValue("n")))
	return letters{Entries: []inbox.Entry{e}}, err
}

// number is 0, which no message has, for a text that is none.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64) // 0, or the number next to one that is too large
	return n
}

const setReason = `
select set_config('payonce.reason', $1, true)`

// decide returns an action that stores a decision with its operator and reason, and shows the message.
//
// If we die here: the decision is stored with both, or not at all. Test: TestDeadLetters.
func (c *Console) decide(decision func(context.Context, groupcommit.Querier, int64, string) error, needsReason bool) func(request) (any, error) {
	return func(r request) (any, error) {
		reason := strings.TrimSpace(r.PostForm.Get("reason"))
		if needsReason && reason == "" || len([]rune(reason)) > longestReason {
			return nil, problem{http.StatusUnprocessableEntity, "Give a reason of at most 500 characters: the audit log keeps it."}
		}
		ctx := r.Context()
		err := pgx.BeginFunc(ctx, c.db.Load().Pool(), func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, setReason, reason); err != nil {
				return err
			}
			return decision(ctx, tx, number(r.PathValue("n")), r.actor)
		})
		for _, receiver := range receivers {
			c.bell.Ring(receiver)
		}
		c.bell.Wake(doorbell.Page)
		return "/dead-letters/" + r.PathValue("n"), err
	}
}
