// Package httpapi is payonce over HTTP: routes, authentication, strict reading
// of requests, and problems (RFC 9457) for everything that is refused.
//
// It promises that a request is bounded in time and size, is read strictly or
// refused before anything is stored, and that each answer of the layers below
// leaves through one table of problems. It owns no table of the database.
package httpapi
