package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

// Bounds of a page of messages.
const (
	defaultMessages = 100
	maxMessages     = 1000
)

// getInbox is GET /v1/inbox: what was set aside of the messages about the caller's
// charges, in the order in which it was received.
func (a *API) getInbox(c echo.Context) error {
	q, err := readInboxQuery(c.Request().URL.RawQuery)
	if err != nil {
		return err
	}
	entries, err := inbox.List(c.Request().Context(), a.tenant(c), q.status, q.after, q.limit+1)
	if err != nil {
		return err
	}
	more := len(entries) > q.limit
	return c.JSON(http.StatusOK, map[string]any{"data": entries[:min(len(entries), q.limit)], "has_more": more})
}

type inboxQuery struct {
	status inbox.Status
	after  int64 // the number of a message
	limit  int
}

func readInboxQuery(raw string) (inboxQuery, error) {
	q := inboxQuery{status: inbox.StatusDead, limit: defaultMessages}
	var k checker
	return q, k.query(raw, func(name, value string) { k.inboxParameter(&q, name, value) })
}

func (k *checker) inboxParameter(q *inboxQuery, name, value string) {
	switch name {
	case "status":
		if value == "" {
			return
		}
		if q.status = inbox.Status(value); q.status != inbox.StatusDead && q.status != inbox.StatusDiscarded {
			k.refuse("/status", "is neither dead nor discarded")
		}
	case "starting_after":
		n, ok := whole(value)
		if q.after = n; value != "" && (!ok || n < 0) {
			k.refuse("/starting_after", "is not the id of a message")
		}
	case "limit":
		k.limit(&q.limit, value, maxMessages)
	default:
		k.unknown(name)
	}
}

// retryMessage is POST /v1/inbox/{id}/retry.
func (a *API) retryMessage(c echo.Context) error { return a.decide(c, inbox.Retry) }

// discardMessage is POST /v1/inbox/{id}/discard.
func (a *API) discardMessage(c echo.Context) error { return a.decide(c, inbox.Discard) }

// decide lets one operator decide about a parked message of the caller's, once:
// whoever comes second finds it parked no more. So it needs no idempotency key.
// The answer is the message as it is a moment later. Another merchant's message
// does not exist.
func (a *API) decide(c echo.Context, decision func(ctx context.Context, q postgres.QuerierWith, number int64, actor string) error) error {
	if _, err := decodeOptional[struct{}](c); err != nil {
		return err
	}
	number, ok := whole(param(c, "id"))
	if !ok {
		return errNoMessage
	}
	ctx, tenant := c.Request().Context(), a.tenant(c)
	if err := decision(ctx, tenant, number, actor(c)); err != nil {
		return undecided(err)
	}
	e, err := inbox.Show(ctx, tenant, number)
	if err != nil {
		return undecided(err)
	}
	return c.JSON(http.StatusOK, e)
}

// actor names the key under which an operator came, by the part that is no
// secret.
func actor(c echo.Context) string {
	_, key, _ := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
	return "api:" + merchants.Prefix(strings.TrimSpace(key))
}

func undecided(err error) error {
	switch {
	case errors.Is(err, inbox.ErrNoMessage):
		return errNoMessage
	case errors.Is(err, inbox.ErrNotParked):
		p := errConflict.because("somebody has decided about it, or it was never parked")
		p.Title = "The message is not parked"
		return p
	}
	return err
}

var errNoMessage = errNotFound.because("no message has this id")
