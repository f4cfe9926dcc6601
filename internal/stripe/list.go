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

type listed interface{ id() string }

// pages walks a list page by page. stripe-go can do it too, but it takes any
// JSON object for an empty list, which an audit would believe, and asks for ever
// where an empty page says that there is more.
func pages[S any, T listed](
	ctx context.Context,
	c *Client,
	doing string,
	read func(S) (T, error),
	list func(context.Context, stripego.ListParams) *stripego.V1List[S],
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		params := stripego.ListParams{Limit: stripego.Int64(pageSize), Single: true}
		for more := true; more; {
			items, err := request(ctx, c, func(ctx context.Context) (*stripego.V1List[S], error) {
				l := list(ctx, params)
				return l, l.Err()
			}, func(l *stripego.V1List[S]) ([]T, error) {
				more = l.Meta().HasMore
				return pageOf(l, read)
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
