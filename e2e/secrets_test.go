package e2e_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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
	api := d.APIs[0].URL()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(method, path, body string, headers ...string) {
		t.Helper()
		r, err := http.NewRequestWithContext(bounded(t), method, api+path, strings.NewReader(body))
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+d.Secrets.API)
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		response, err := client.Do(r)
		if err == nil { // else the server has cut the connection
			_ = response.Body.Close()
		}
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
			d.await(t, acceptedCharge(t, d.insist(t, request{key: plantedWord + secret, body: []byte(charge)})).ID)
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
	run := func(env []string, path string, args ...string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // a service waits for its database
		defer cancel()
		command := exec.CommandContext(ctx, path, args...)
		command.Env, command.WaitDelay = append(env, "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME")), time.Second
		command.Stdout, command.Stderr = &printed, &printed
		_ = command.Run() // what it prints counts
	}
	cli := func(args ...string) {
		run([]string{"DATABASE_URL=" + d.Service, "ALLOW_PLAINTEXT=1"}, d.Payonce, args...)
	}
	secretFile := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secretFile, []byte("whsec_cGxhbnRlZC1zZWNyZXQtNWUxYQAAAAAA"), 0o600))
	cli("seed", "--merchant=planted", "--api-key=sk_test_"+plantedWord, "--webhook-url=https://"+plantedWord+":"+plantedWord+"@shop.example/")
	cli("seed", "--merchant=planted", "--api-key=sk_test_"+plantedWord, "--webhook-url=https://shop.example/"+plantedWord+"?token="+plantedWord, "--webhook-secret-file="+secretFile)
	cli("seed", "--merchant=planted", "--api-key=sk_live_"+plantedWord)
	cli("seed", "--merchant=planted", "--webhook-secret=whsec_"+plantedWord, "--webhook-url=https://shop.example/")
	cli("keys", "create", "--merchant=planted", "--scopes=admin", "--api-key=sk_live_"+plantedWord)
	cli("keys", "revoke", "sk_live_"+plantedWord)
	cli("keys", "rotate", "sk_live_"+plantedWord)
	cli("webhooks", "rotate", "--merchant=planted", "--webhook-secret=whsec_"+plantedWord)
	for _, list := range []string{"keys list", "stock list", "actions", "inbox list", "audit"} {
		cli(append(strings.Fields(list), "--json")...)
		cli(strings.Fields(list)...)
	}
	unreachable := "postgres://unknown:" + plantedWord + "@127.0.0.1:1/none"
	for i, at := range []string{
		unreachable, "postgres://unknown:" + plantedWord + "@127.0.0.1:one/none", "host=127.0.0.1 port=one password=" + plantedWord,
		"postgres://unknown@127.0.0.1:one/none?password=" + plantedWord, "postgres://unknown:" + plantedWord + "%zz@127.0.0.1:1/none",
	} {
		env := []string{"DATABASE_URL=" + at, "ALLOW_PLAINTEXT=1", "STRIPE_SECRET_KEY=sk_test_" + plantedWord, "STRIPE_WEBHOOK_SECRET=" + plantedWord}
		run(env, d.Payonce, "keys", "list")
		run(env, d.API)
		if i != 0 { // each waits for a database that may come
			run(env, d.Worker)
		}
	}
	if !bytes.Contains(printed.Bytes(), []byte("waiting for the database")) {
		t.Errorf("no program has tried its database:\n%s", printed.Bytes())
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
