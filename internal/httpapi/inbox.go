package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
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
	status, after, limit, err := inboxQuery(c.QueryParams())
	if err != nil {
		return err
	}
	entries, err := inbox.List(c.Request().Context(), a.tenant(c), status, after, limit+1)
	if err != nil {
		return err
	}
	more := len(entries) > limit
	return c.JSON(http.StatusOK, map[string]any{"data": entries[:min(len(entries), limit)], "has_more": more})
}

// inboxQuery reads status (dead unless given), starting_after and limit.
func inboxQuery(q url.Values) (status inbox.Status, after int64, limit int, err error) {
	var wrong []fieldError
	status, limit = inbox.StatusDead, defaultMessages
	if given := q.Get("status"); given != "" {
		status = inbox.Status(given)
	}
	if status != inbox.StatusDead && status != inbox.StatusDiscarded {
		wrong = append(wrong, fieldError{"/status", "must be dead or discarded"})
	}
	if given := q.Get("starting_after"); given != "" {
		if after, err = strconv.ParseInt(given, 10, 64); err != nil || after < 0 {
			wrong = append(wrong, fieldError{"/starting_after", "must be the id of a message"})
		}
	}
	if given := q.Get("limit"); given != "" {
		if limit, err = strconv.Atoi(given); err != nil || limit < 1 || limit > maxMessages {
			wrong = append(wrong, fieldError{"/limit", "must be between 1 and " + strconv.Itoa(maxMessages)})
		}
	}
	if len(wrong) > 0 {
		return "", 0, 0, invalid(wrong...)
	}
	return status, after, limit, nil
}

// retryMessage is POST /v1/inbox/{id}/retry.
func (a *API) retryMessage(c echo.Context) error { return a.decide(c, inbox.Retry) }

// discardMessage is POST /v1/inbox/{id}/discard.
func (a *API) discardMessage(c echo.Context) error { return a.decide(c, inbox.Discard) }

// decide lets one operator decide about a parked message of the caller's, once:
// whoever comes second finds it parked no more. So it needs no idempotency key.
// The answer is the message as it is a moment later. Another merchant's message
// does not exist.
func (a *API) decide(c echo.Context, decision func(ctx context.Context, q postgres.Querier, number int64, actor string) error) error {
	if _, err := decodeOptional[struct{}](c); err != nil {
		return err
	}
	number, err := strconv.ParseInt(c.Param("id"), 10, 64)
	if err != nil {
		return noMessage()
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
		return noMessage()
	case errors.Is(err, inbox.ErrNotParked):
		p := conflict("somebody has decided about it, or it was never parked")
		p.Title = "The message is not parked"
		return p
	}
	return err
}

func noMessage() problem { return notFound("no message has this id") }
