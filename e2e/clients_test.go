package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testrun"
)

var clients = flag.String("clients", "", "generate clients with these commands, OAPI-CODEGEN@VERSION,OGEN@VERSION, and call an api with them")

// TestClients_generatedFromTheServedContract_callTheAPI generates two clients with the
// defaults of their generators, one from the contract in YAML and one from it in JSON,
// compiles both, and runs testdata/clients.go.txt with them.
func TestClients_generatedFromTheServedContract_callTheAPI(t *testing.T) {
	t.Parallel()
	oapiCodegen, ogen, ok := strings.Cut(*clients, ",")
	if !ok {
		t.Skip("not run: it downloads generators; -clients runs it")
	}
	d := deploy(t, setup{apis: 1, workers: 1, oneMerchant: true})
	folder, api := t.TempDir(), d.APIs[0].URL()
	err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(readFile(t, "testdata/clients.go.txt")), 0o600)
	must(t, errors.Join(err, os.Mkdir(filepath.Join(folder, "oapi"), 0o755)))
	var output []byte
	for _, command := range []string{
		"mod init clients",
		"run " + oapiCodegen + " -package oapi -o oapi/client.go " + api + "/openapi.yaml",
		"run " + ogen + " -package ogen -target ogen " + api + "/openapi.yaml",
		"get " + ogen, // its package is imported by what it generates
		"mod tidy",
		"vet ./...",
		"run .",
	} {
		run := exec.CommandContext(t.Context(), "go", strings.Fields(command)...)
		run.Dir, run.Env = folder, append(os.Environ(), "GOFLAGS=-mod=mod", "API="+api, "KEY="+d.Secrets.API)
		if output, err = run.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", command, err, output)
		}
	}
	want := `status=202 replayed="" same=true
status=202 replayed="true" same=true
amount=1000 currency=USD status=succeeded
event=charge.requested.v1 order=17
told=charge.succeeded order=17
`
	testrun.Same(t, "", want, string(output))
	const order = `{"order_id": "17", "amount": 1000, "currency": "USD", "payment_method": "pm_card_visa"}`
	again := d.insist(t, request{key: "order-17", body: []byte(order)})
	if again.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same request by hand is answered %d %s", again.Status, again.Body)
	}
}

// TestClientExample_killedAndCutOff_paysOnce kills the client's example when the api has
// answered, and cuts off the first two answers. Then the example runs twice, as in a shop that
// does not know that it has paid.
func TestClientExample_killedAndCutOff_paysOnce(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1, oneMerchant: true})
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", folder, "./example")
	build.Dir = filepath.Join("..", "client")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, output)
	}
	between := newGates(t, d.APIs[0].URL())
	var lock sync.Mutex
	var requests []request // that the api has answered
	between.set(func(p passage) bool {
		lock.Lock()
		defer lock.Unlock()
		key := p.request.Header.Get("Idempotency-Key")
		if key != "" && p.side == failpoint.After {
			requests = append(requests, request{key: key, body: p.body})
			return len(requests) > 2
		}
		return true
	})
	sent := func() []request {
		lock.Lock()
		defer lock.Unlock()
		return slices.Clone(requests)
	}
	pay := func() *exec.Cmd {
		c := exec.CommandContext(t.Context(), filepath.Join(folder, "example"), "--api", between.url, "--requests", filepath.Join(folder, "requests"), "17", "1000")
		c.Env = append(os.Environ(), "PAYONCE_KEY="+d.Secrets.API)
		return c
	}
	killed := pay()
	must(t, killed.Start())
	await.True(t, "the api answers", func() bool { return len(sent()) > 0 })
	must(t, killed.Process.Kill())
	_ = killed.Wait() // it was killed

	var paid []string
	for range 2 {
		c := pay()
		c.Stderr = os.Stderr
		output, err := c.Output()
		must(t, err)
		paid = append(paid, string(output))
	}

	all := sent()
	if len(all) < 4 || slices.ContainsFunc(all, func(r request) bool {
		return r.key != all[0].key || !bytes.Equal(r.body, all[0].body)
	}) {
		t.Errorf("it sent %d requests, want the same one four times", len(all))
	}
	// The judge learns of the charge.
	var c charge
	must(t, json.Unmarshal(d.insist(t, all[0]).Body, &c))
	want := c.ID + "\nsucceeded\n"
	testrun.Same(t, "", []string{want, want}, paid)
}
