package httpapi

import (
	"context"
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

// getInbox is GET /v1/inbox: the dead letters about the caller's charges, oldest first.
func (a *API) getInbox(c echo.Context) (any, error) {
	status, after, limit := inbox.StatusDead, int64(0), defaultMessages
	err := readQuery(c, map[string]func(*checker, string){
		"status": func(k *checker, value string) {
			if status = inbox.Status(value); status != inbox.StatusDead && status != inbox.StatusDiscarded {
				k.refuse("/status", "is neither dead nor discarded")
			}
		},
		"starting_after": func(k *checker, value string) {
			n, ok := whole(value)
			if after = n; !ok || n < 0 {
				k.refuse("/starting_after", "is not the id of a message")
			}
		},
		"limit": func(k *checker, value string) { limit = k.limit(value, maxMessages) },
	})
	if err != nil {
		return nil, err
	}
	entries, err := inbox.List(c.Request().Context(), a.tenant(c), status, after, limit+1)
	return map[string]any{"data": entries[:min(len(entries), limit)], "has_more": len(entries) > limit}, err
}

// decide carries out an operator's decision about a dead letter of the caller's, once: a
// second decision finds that it is none any more. So it needs no idempotency key. The
// answer is the message after the decision. Another merchant's message does not exist.
func (a *API) decide(decision func(ctx context.Context, q postgres.Querier, number int64, actor string) error) echo.HandlerFunc {
	return answer(func(c echo.Context) (any, error) {
		if _, err := decode[struct{}](c, true, nil); err != nil {
			return nil, err
		}
		number, ok := whole(param(c, "id"))
		if !ok {
			return nil, inbox.ErrNoMessage
		}
		ctx, tenant := c.Request().Context(), a.tenant(c)
		if err := decision(ctx, tenant, number, actor(c)); err != nil {
			return nil, err
		}
		return inbox.Show(ctx, tenant, number)
	})
}

// actor names the operator's API key by the part that is not secret.
func actor(c echo.Context) string {
	_, key, _ := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
	return "api:" + merchants.Prefix(strings.TrimSpace(key))
}
