package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/swaggest/swgui/v5/static"
	"go.yaml.in/yaml/v3"

	"github.com/payonce/payonce/internal/clientaddr"
)

// contract is the API as callers may rely on it. Tests compare every answer with it.
//
//go:embed openapi.yaml
var contract []byte

// The page to read the contract is Swagger UI, whose files are in the program.
//
//go:embed openapi_page.html
var docsPage []byte

//go:embed openapi_page.js
var docsScript []byte

// docsPolicy lets the page load from this server alone. Swagger UI sets styles on its
// elements and draws its icons from data URLs.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; " +
	"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// asset is a file that is the same for every caller until the program is replaced.
type asset struct {
	mediaType, policy, tag string
	content, packed        []byte // packed is gzip
}

// newAssets are the assets by path. It panics if the program holds a file that cannot be read.
func newAssets() map[string]asset {
	assets := map[string]asset{
		"/openapi.yaml":              {mediaType: "application/yaml", content: contract},
		"/openapi.json":              {mediaType: echo.MIMEApplicationJSON, content: contractAsJSON()},
		"/docs":                      {mediaType: echo.MIMETextHTMLCharsetUTF8, policy: docsPolicy, content: docsPage},
		"/docs/page.js":              {mediaType: "text/javascript; charset=utf-8", content: docsScript},
		"/docs/swagger-ui-bundle.js": {mediaType: "text/javascript; charset=utf-8"},
		"/docs/swagger-ui.css":       {mediaType: "text/css; charset=utf-8"},
	}
	for path, a := range assets {
		if a.content == nil {
			a.content, a.packed = unpack(strings.TrimPrefix(path, "/docs/") + ".gz")
		} else {
			a.packed = pack(a.content)
		}
		sum := sha256.Sum256(a.content)
		a.tag = `W/"` + hex.EncodeToString(sum[:8]) + `"` // weak: compressed or not
		assets[path] = a
	}
	return assets
}

// contractAsJSON is the contract in JSON, its members in alphabetical order.
func contractAsJSON() []byte {
	var document map[string]any
	if err := yaml.Unmarshal(contract, &document); err != nil {
		panic(err)
	}
	written, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	return written
}

func pack(content []byte) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(content) // a buffer takes all
	_ = w.Close()
	return packed.Bytes()
}

func unpack(name string) (content, packed []byte) {
	packed, err := static.FS.ReadFile(name)
	if err != nil {
		panic(err)
	}
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		content, err = io.ReadAll(reader)
	}
	if err != nil {
		panic(err)
	}
	return content, packed
}

// refusesGzip matches an Accept-Encoding that names gzip with a weight of zero.
var refusesGzip = regexp.MustCompile(`gzip\s*;\s*q=0(\.0*)?\s*(,|$)`)

// getAsset is GET /openapi.yaml, GET /openapi.json, GET /docs and the files of that page. A
// caller that has the file already is answered 304. No answer needs memory of its own.
func (a *API) getAsset(c echo.Context) error {
	r, h := c.Request(), c.Response().Header()
	file, found := a.assets[r.URL.Path]
	if !found {
		return echo.ErrNotFound
	}
	if strings.HasPrefix(r.URL.Path, "/docs") && !slices.Contains(a.DocsHosts, clientaddr.Host(r)) {
		return errNotFound.because("the documentation is not served under this host: see DOCS_HOSTS")
	}
	leave, err := a.limits.assets.enter("")
	if err != nil {
		return err
	}
	defer leave()
	limitSending(c)
	h.Set(echo.HeaderContentType, file.mediaType)
	h.Set("ETag", file.tag)
	h.Set(echo.HeaderCacheControl, "no-cache") // it may be kept, and is validated each time
	h.Set(echo.HeaderVary, echo.HeaderAcceptEncoding)
	if file.policy != "" {
		h.Set(echo.HeaderContentSecurityPolicy, file.policy)
	}
	content := file.content
	if accepted := r.Header.Get(echo.HeaderAcceptEncoding); strings.Contains(accepted, "gzip") && !refusesGzip.MatchString(accepted) {
		content = file.packed
		h.Set(echo.HeaderContentEncoding, "gzip")
		h.Set(echo.HeaderContentLength, strconv.Itoa(len(content)))
	}
	r.Header.Del("Range") // whole files alone
	r.Header.Del("If-Match")
	http.ServeContent(c.Response(), r, "", time.Time{}, bytes.NewReader(content))
	return nil
}
