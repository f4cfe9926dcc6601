package stripe

import (
	"context"
	"errors"
	"fmt"
	"iter"

	stripego "github.com/stripe/stripe-go/v85"
)

// pageSize is the largest that Stripe allows.
const pageSize = 100

// refundsOfIntent is more refunds than any intent has: payonce asks for a
// hundred at most, and some are made by hand.
const refundsOfIntent = 5000

type listed interface{ id() string }

// pages walks a list page by page. One of more than most objects is refused; 0
// means that it may have any number. stripe-go can do it too, but it takes any
// JSON object for an empty list, which an audit would believe, and asks for ever
// where an empty page says that there is more, or where a cache hands out one
// page whatever the cursor.
func pages[S any, T listed](
	ctx context.Context,
	c *Client,
	doing string,
	most int,
	read func(S) (T, error),
	list func(context.Context, stripego.ListParams) *stripego.V1List[S],
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		seen := make(map[string]bool)
		params := stripego.ListParams{Limit: stripego.Int64(pageSize), Single: true}
		for more := true; more; {
			items, err := request(ctx, c, func(ctx context.Context) (*stripego.V1List[S], error) {
				l := list(ctx, params)
				return l, l.Err()
			}, func(l *stripego.V1List[S]) ([]T, error) {
				more = l.Meta().HasMore
				items, err := pageOf(l, read)
				if err != nil {
					return nil, err
				}
				return items, advances(seen, items, most)
			})
			if err != nil {
				var none T
				yield(none, fmt.Errorf("%s: %w", doing, err))
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if more {
				params.StartingAfter = stripego.String(items[len(items)-1].id())
			}
		}
	}
}

func pageOf[S any, T listed](l *stripego.V1List[S], read func(S) (T, error)) ([]T, error) {
	if l.Data() == nil {
		return nil, errors.New("the answer holds no list")
	}
	if len(l.Data()) == 0 && l.Meta().HasMore {
		return nil, errors.New("the answer is an empty page that says there is more")
	}
	items := make([]T, 0, len(l.Data()))
	for _, sent := range l.Data() {
		item, err := read(sent)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// advances refuses a page after which the list would be no nearer to its end.
func advances[T listed](seen map[string]bool, items []T, most int) error {
	for _, item := range items {
		if seen[item.id()] {
			return fmt.Errorf("the list repeats itself: it has %s twice", item.id())
		}
		seen[item.id()] = true
	}
	if most > 0 && len(seen) > most {
		return fmt.Errorf("the list does not end after %d", most)
	}
	return nil
}
