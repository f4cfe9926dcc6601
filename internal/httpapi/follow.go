package httpapi

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

// followEvents is GET /v1/events: what the caller's webhooks say, in the order of
// transaction ids.
func (a *API) followEvents(c echo.Context) (any, error) {
	after, limit := "", defaultCharges
	err := readQuery(c, &limit, map[string]*string{"after": &after})
	if err != nil {
		return nil, err
	}
	return books.ReadFeed(c.Request().Context(), a.tenant(c), merchantOf(c).ID, after, limit)
}

// waitPoll is the first pause between two reads of a charge that a request waits for. Each pause is a tenth longer than
// the one before, so ten seconds have 25 reads. No notification is waited for: each would wake every api for every
// commit of the workers.
const waitPoll = 100 * time.Millisecond

// getCharge is GET /v1/charges/{id}: the fold of the stream as it is now. With Prefer: wait=N it
// is answered when a read finds its outcome or another status, or after N seconds. A request
// that waits holds no connection to the database between its reads. One more than may wait is answered at once.
func (a *API) getCharge(c echo.Context, s ledger.Stream) (any, error) {
	wait := preferredWait(c.Request().Header.Values(headerPrefer))
	if wait == 0 {
		return s.View(), nil
	}
	before, ctx := s.Charge.Status, c.Request().Context()
	leave, err := a.limits.waits.enter(merchantOf(c).ID, 1)
	if err != nil {
		return s.View(), nil
	}
	defer leave()
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer context.AfterFunc(a.closing, cancel)()
	for pause := waitPoll; !s.Charge.HasOutcome() && s.Charge.Status == before && waiting.Err() == nil; pause += pause / 10 {
		loop.Pause(waiting, pause, nil)
		if s, err = ledger.Load(ctx, a.tenant(c), s.ID); err != nil {
			return nil, err
		}
	}
	return s.View(), nil
}
