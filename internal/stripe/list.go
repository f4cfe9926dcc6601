package stripe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cenkalti/backoff/v5"
	stripego "github.com/stripe/stripe-go/v85"
)

const (
	pageSize = 100 // the largest that Stripe allows
	// pageTries are those of a later page: what was read before it is not lost because of one answer.
	pageTries = 7
)

// pages reads a list of an intent, or of the account if intent is "", page by page. stripe-go's
// own iterator takes any JSON object for an empty list, and does not end if an empty page says
// that there is more or if a cache returns one page for every cursor.
func pages[S, T any](
	ctx context.Context,
	c *Client,
	call, intent string,
	read func(S) (T, error),
	id func(T) string,
	list func(ctx context.Context, p stripego.ListParams, of *string) *stripego.V1List[S],
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		seen, tries := map[string]bool{}, uint(1)
		params := stripego.ListParams{Limit: stripego.Int64(pageSize), Single: true}
		for more := true; more; tries = pageTries {
			l, err := backoff.Retry(ctx, func() (*stripego.V1List[S], error) {
				l, err := ask(ctx, c, func(ctx context.Context) (*stripego.V1List[S], error) {
					l := list(ctx, params, given(intent))
					return l, l.Err()
				}, func(l *stripego.V1List[S]) (*stripego.V1List[S], error) { return l, nil })
				return l, paced(err)
			}, backoff.WithMaxTries(tries))
			var items []T
			if err == nil {
				items, err = page(l, seen, read, id)
			}
			if err != nil {
				yield(*new(T), fmt.Errorf("%s %s: %w", call, cmp.Or(intent, "the account"), err))
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
				params.StartingAfter = stripego.String(id(item))
			}
			more = l.Meta().HasMore
		}
	}
}

// paced is an error of a page as package backoff reads it: a certain one is not asked for again, and the
// provider says when to ask.
func paced(err error) error {
	e, ok := errors.AsType[*Error](err)
	switch {
	case !ok:
		return err
	case e.Kind != Unavailable && e.Kind != Failed:
		return backoff.Permanent(err)
	case e.RetryAfter > 0:
		return fmt.Errorf("%w; %w", err, &backoff.RetryAfterError{Duration: e.RetryAfter})
	}
	return err
}

// page returns the objects of a page and adds them to seen. It refuses a page that
// brings the end of the list no nearer.
func page[S, T any](
	l *stripego.V1List[S], seen map[string]bool, read func(S) (T, error), id func(T) string,
) ([]T, error) {
	if l.Data() == nil || len(l.Data()) == 0 && l.Meta().HasMore {
		return nil, unavailable(errors.New("the answer is no list, or an empty page that says there is more"))
	}
	items := make([]T, 0, len(l.Data()))
	for _, sent := range l.Data() {
		item, err := read(sent)
		if err == nil && seen[id(item)] {
			err = fmt.Errorf("the list repeats itself: it has %s twice", id(item))
		}
		if err != nil {
			return nil, unavailable(err)
		}
		seen[id(item)] = true
		items = append(items, item)
	}
	return items, nil
}
