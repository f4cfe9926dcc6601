package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"
)

// httpConnections is how many connections a client has to each api, each with one
// request at a time.
const httpConnections = 64

// client sends charges over HTTP. It takes little of the processor time that it
// shares with the programs.
type client struct{ fasthttp.Client }

func newClient() *client {
	return &client{fasthttp.Client{
		MaxConnsPerHost: httpConnections, MaxIdemponentCallAttempts: 1, // a request is one request
		ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
	}}
}

// charge sends a merchant's charge with the key id, which is its order too, and returns
// whether the response was a replay.
func (c *client) charge(url string, of account, id string, sku int) (replayed bool, err error) {
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(response)
	request.SetRequestURI(url + "/v1/charges")
	request.Header.SetMethod(http.MethodPost)
	request.Header.SetContentType("application/json")
	request.Header.Set("Authorization", "Bearer "+of.key)
	request.Header.Set("Idempotency-Key", id)
	request.SetBodyString(fmt.Sprintf(`{"order_id":%q,"amount":1000,"currency":"USD","payment_method":"pm_card_visa",`+
		`"items":[{"sku":%q,"quantity":1}]}`, id, article(sku%of.articles)))
	if err := c.Do(request, response); err != nil {
		return false, fmt.Errorf("send charge %s: %w", id, err)
	}
	if response.StatusCode() != http.StatusAccepted {
		return false, fmt.Errorf("send charge %s: status %d: %s", id, response.StatusCode(), response.Body())
	}
	return len(response.Header.Peek("Idempotent-Replayed")) > 0, nil
}

// articles is how many a merchant sells. A charge takes one of one.
const articles = 1000

func article(n int) string { return fmt.Sprintf("sku-%03d", n%articles) }
