package openapi

import (
	"bytes"
	"io"
	"net/http"
)

// Handler serves next and shows every exchange to judge, before next's answer is
// complete for the client.
func Handler(next http.Handler, judge func(Exchange)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := r.Clone(r.Context()) // as it came: next may change it
		sent := &bytes.Buffer{}
		r.Body = tee{r.Body, sent}
		answer := &recorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		judge(Exchange{
			Request: request, Sent: sent.Bytes(),
			Status: answer.status, Header: w.Header(), Body: answer.body.Bytes(),
		})
	})
}

// tee keeps what is read of a body.
type tee struct {
	io.ReadCloser
	kept *bytes.Buffer
}

func (t tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.kept.Write(p[:n])
	return n, err
}

// recorder keeps what is answered.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *recorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	w.body.Write(p)
	return w.ResponseWriter.Write(p)
}

// Unwrap serves http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
