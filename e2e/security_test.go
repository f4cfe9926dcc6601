package e2e_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// planted are texts that no output may have: each stands for a secret, a card number or
// personal data that a careless client or operator sends to where it does not belong.
const (
	plantedCard  = "4242424242424242"
	plantedEmail = "planted.person@shop.example"
	plantedWord  = "planted-secret-5e1a"
)

// TestOutput_holdsNoSecrets feeds secrets to everything that reads outside input, at the level
// of the most lines, and searches all that api, worker, sandbox and the command line print. The
// deployment's own secrets and idempotency keys are searched for at its end.
func TestOutput_holdsNoSecrets(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	debug := map[string]string{"LOG_LEVEL": "debug"}
	d := deploy(t, setup{apis: 1, workers: 1, providerEvents: true, apiEnv: debug, workerEnv: debug})
	send := func(method, path, body string, headers ...string) {
		t.Helper()
		header := http.Header{"Content-Type": {"application/json"}}
		for i := 0; i < len(headers); i += 2 {
			header.Set(headers[i], headers[i+1])
		}
		// The api may cut the connection.
		_, _ = d.client.Do(bounded(t), request{Method: method, Path: path, Body: []byte(body), Header: header})
	}
	o := newOrder(visa)
	o.Metadata = map[string]string{"email": plantedEmail, "token": plantedWord}
	d.mustSucceed(t, d.send(t, o).ID)
	for _, secret := range []string{plantedCard, plantedWord, "sk_live_" + plantedWord} {
		send(http.MethodPost, "/v1/charges", `{"`+secret+`":1}`, "Idempotency-Key", secret)
		charge := `{"order_id":"o","amount":1,"currency":"USD","payment_method":"` + secret + `","customer":"` + secret + `","description":"` + secret + `","metadata":{"` + secret + `":"` + secret + `"}}`
		if secret == plantedCard { // it is refused
			send(http.MethodPost, "/v1/charges", charge, "Idempotency-Key", plantedWord)
		} else {
			d.await(t, acceptedCharge(t, d.insist(t, request{Key: plantedWord + secret, Body: []byte(charge)})).ID)
		}
		send(strings.ReplaceAll(secret, "_", "-"), "/v1/charges", "")
		send(http.MethodGet, "/v1/charges/"+secret+"?"+secret+"="+secret, "")
		send(http.MethodGet, "/"+secret, "")
		send(http.MethodGet, "/v1/balances", "", "Authorization", "Bearer "+secret)
		send(http.MethodGet, "/v1/balances", "", "Authorization", "Basic "+secret)
		send(http.MethodGet, "/v1/balances", "", "X-Forwarded-For", secret, "User-Agent", secret, "Cookie", secret, "Referer", secret, "Prefer", secret, "Traceparent", secret)
		send(http.MethodPost, "/v1/webhooks/stripe", `{"id":"`+secret+`"}`, "Stripe-Signature", "t=1,v1="+secret)
	}
	send(http.MethodGet, "/v1/balances", "", "X-Request-Id", "card "+plantedCard)

	var printed bytes.Buffer
	cli := func(args ...string) {
		command := exec.CommandContext(bounded(t), d.Payonce, args...)
		command.Env = []string{"DATABASE_URL=" + d.Service, "ALLOW_PLAINTEXT=1"}
		command.Stdout, command.Stderr = &printed, &printed
		_ = command.Run() // what it prints counts
	}
	secretFile := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secretFile, []byte("whsec_cGxhbnRlZC1zZWNyZXQtNWUxYQAAAAAA"), 0o600))
	cli("seed", "--merchant=planted", "--api-key=sk_test_"+plantedWord, "--webhook-url=https://"+plantedWord+":"+plantedWord+"@shop.example/")
	cli("seed", "--merchant=planted", "--api-key=sk_test_"+plantedWord, "--webhook-url=https://shop.example/"+plantedWord+"?token="+plantedWord, "--webhook-secret-file="+secretFile)
	cli("seed", "--merchant=planted", "--api-key=sk_live_"+plantedWord)
	cli("seed", "--merchant=planted", "--webhook-secret=whsec_"+plantedWord, "--webhook-url=https://shop.example/")
	cli("keys", "create", "--merchant=planted", "--scopes=admin", "--api-key=sk_live_"+plantedWord)
	cli("keys", "revoke", "sk_live_"+plantedWord)
	cli("webhooks", "rotate", "--merchant=planted", "--webhook-secret=whsec_"+plantedWord)
	for _, list := range []string{"keys list", "stock list", "actions", "inbox list", "audit"} {
		cli(append(strings.Fields(list), "--json")...)
		cli(strings.Fields(list)...)
	}
	if !bytes.Contains(printed.Bytes(), []byte("tshirt")) {
		t.Errorf("the command line has not reached its database:\n%s", printed.Bytes())
	}

	outputs := map[string][]byte{"the command line": printed.Bytes()}
	for _, p := range d.Processes() {
		outputs[p.Name()] = d.log(t, p.Name())
	}
	for name, output := range outputs {
		for _, secret := range []string{plantedCard, plantedEmail, plantedWord, "cGxhbnRlZC1zZWNyZXQtNWUxYQ"} {
			if line := regexp.MustCompile(".*" + regexp.QuoteMeta(secret) + ".*").Find(output); line != nil {
				t.Errorf("%s prints %q: %s", name, secret, line)
			}
		}
	}
}

// every is set in continuous integration.
var every = flag.Bool("every", false, "what continuous integration adds: hostile clients, more failovers, the lab and the ends of demos, the soak of memory, and data races of the programs")

var hostile = flag.Duration("hostile", 250*time.Millisecond, "for how long TestHostileClients makes each attack")

// mostMemory is the resident memory that the api may have, and memoryLimit what Go gets of a
// container with that much.
const (
	mostMemory  = 256 << 10 // KiB
	memoryLimit = "230MiB"
)

// attack is what each of many clients does on a connection that it opens again when it is
// closed. They never read.
type attack struct {
	name  string
	conns int
	sent  string // at once
	drip  string // then, over and over; nothing is sent where it is empty
	pause time.Duration
}

// attacks are those on an api with a merchant's key.
func attacks(apiKey string) []attack {
	const get, host = "GET %s HTTP/1.1\r\n%s\r\n", "Host: 127.0.0.1\r\n"
	key := host + "Authorization: Bearer " + apiKey + "\r\n"
	json := "POST /v1/charges HTTP/1.1\r\nContent-Type: application/json\r\nIdempotency-Key: hostile\r\n"
	const length, chunked = "Content-Length: 60000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n"
	chunk := "10000\r\n" + strings.Repeat(" ", 64<<10) + "\r\n"
	const slowly = 200 * time.Millisecond
	all := []attack{
		{"headers that trickle", 500, "GET /healthz HTTP/1.1\r\n" + host, "A: b\r\n", slowly},
		{"headers without an end", 200, "GET /healthz HTTP/1.1\r\n" + host + "A: ", strings.Repeat("b", 64<<10), time.Millisecond},
		{"bodies that trickle", 200, json + key + length, " ", slowly},
		{"bodies that trickle, without a key", 500, json + host + length, " ", slowly},
		{"provider events that trickle", 500, "POST /v1/webhooks/stripe HTTP/1.1\r\n" + host + length, " ", slowly},
		{"bodies without an end", 200, json + key + chunked, chunk, time.Millisecond},
		{"provider events without an end", 200, "POST /v1/webhooks/stripe HTTP/1.1\r\n" + host + chunked, chunk, time.Millisecond},
		{"unread lists", 330, "", strings.Repeat(fmt.Sprintf(get, "/v1/charges?limit=100", key), 8), 10 * time.Millisecond},
		{"idle connections", 3_000, "", "", time.Hour},
	}
	for _, path := range []string{
		"/openapi.yaml", "/metrics", "/healthz", "/readyz", "/v1/balances", "/none",
	} {
		request := fmt.Sprintf(get, path, host+"Accept-Encoding: gzip\r\n")
		all = append(all, attack{"unread " + path, 200, "", strings.Repeat(request, 32), 10 * time.Millisecond})
	}
	return all
}

// run makes the attack until ctx ends, and returns when its connections are closed.
func (a attack) run(ctx context.Context, addr string) {
	var clients sync.WaitGroup
	for range a.conns {
		clients.Go(func() {
			for ctx.Err() == nil {
				a.attempt(ctx, addr)
				pause(ctx, time.Second)
			}
		})
	}
	clients.Wait()
}

// attempt ends when the connection does.
func (a attack) attempt(ctx context.Context, addr string) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // a write may block
	defer func() { _ = conn.Close() }()
	next := a.sent
	for ctx.Err() == nil {
		if _, err := conn.Write([]byte(next)); err != nil {
			return
		}
		next = a.drip
		pause(ctx, a.pause)
	}
}

// behave sends ordinary requests until ctx ends. Each must get its answer.
func (d *deployment) behave(ctx context.Context, t *testing.T) (served int) {
	t.Helper()
	for ctx.Err() == nil {
		key, order := "key-"+unique(), newOrder(visa).body(t)
		for _, r := range []request{
			{Key: key, Body: order}, {Key: key, Body: order}, {Method: http.MethodGet, Path: "/v1/charges?limit=1"}, {Method: http.MethodGet, Path: "/healthz"},
		} {
			got, err := d.client.insist(context.WithoutCancel(ctx), r)
			if err != nil || got.Status >= http.StatusMultipleChoices {
				t.Errorf("an ordinary request to %q is answered %d %s, %v", r.Path, got.Status, got.Body, err)
				return served
			}
			served++
		}
		pause(ctx, 100*time.Millisecond) // the audit at the end reads all of these charges
	}
	return served
}

// TestHostileClients: whatever clients do on their connections, an api in a container of 256
// MiB stays within it, and serves those that behave.
func TestHostileClients(t *testing.T) { //nolint:paralleltest // it measures memory, and fills the machine's sockets
	startsWithEvery(t, "it fills the machine's sockets while no other test of the package runs")
	d := deploy(t, setup{apis: 1, workers: 1, apiEnv: map[string]string{"GOMEMLIMIT": memoryLimit}})
	metadata := map[string]string{}
	for i := range 20 {
		metadata["name-"+strconv.Itoa(i)] = strings.Repeat("😀", 500)
	}
	for range 60 { // charges of the largest size: two merchants have a page each
		largest := newOrder(visa)
		largest.Metadata = metadata
		d.insist(t, request{Key: "key-" + unique(), Body: largest.body(t)})
	}
	d.drain(t)
	for _, a := range attacks(d.Secrets.API) {
		ctx, stop := context.WithTimeout(t.Context(), *hostile)
		ended := make(chan bool)
		go func() { a.run(ctx, strings.TrimPrefix(d.APIs[0].URL(), "http://")); close(ended) }()
		served := d.behave(ctx, t)
		<-ended
		stop()
		most := mostMemoryOf(t, d.APIs[0].PID())
		t.Logf("%5d × %-42s %4d MiB at most, %5d ordinary requests served", a.conns, a.name, most>>10, served)
		if most > mostMemory || served == 0 {
			t.Errorf("%s: the api has used %d MiB, and served %d ordinary requests", a.name, most>>10, served)
		}
	}
}

// mostMemoryOf is how much memory a process has had at most, in KiB.
func mostMemoryOf(t *testing.T, pid int) (kib int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("not run: how much memory a program holds is read from /proc: %v", err)
	}
	_, value, _ := strings.Cut(string(status), "\nVmHWM:")
	if _, err := fmt.Sscan(value, &kib); err != nil || kib == 0 {
		t.Fatalf("process %d does not say what it holds: %v\n%s", pid, err, status)
	}
	return kib
}
