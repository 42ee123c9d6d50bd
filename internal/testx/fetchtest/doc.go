// Package fetchtest is an HTTP server with faults on request, for tests of downloads.
//
// A Server serves contents at paths, correctly by default: with Range, If-Range, If-Match, an
// ETag and a date. Faults are added to a path in code, or requested in the URL, so that a
// scenario in a file needs no code:
//
//	http://127.0.0.1:PORT/image.raw?fault=cut&at=4096&times=1
//
// The parameter fault can be repeated. The parameters at, times, skip, to and after apply to
// all faults, or, if they are repeated as often as fault, to each fault in turn. A fault happens
// on the first times GET requests for its path (for its URL, if the URL requests it) after the
// first skip ones; without times, on all of them. The response to HEAD is always 405, because
// the program must not need HEAD.
//
//	cut          the connection ends after at bytes of the body
//	reset        the same, with RST
//	stall        nothing follows after at bytes
//	drip         after at bytes, one byte at a time, 20 bytes per second
//	silent       there is no response
//	flip         the byte at offset at is changed
//	long         Content-Length is at bytes more than the body
//	short        Content-Length is at bytes less than the body
//	norange      Range is ignored
//	badrange     Content-Range begins one byte late
//	changing     each request gets another ETag
//	changed      the content and its ETag change after the first request
//	novalidator  there is neither ETag nor Last-Modified
//	weak         the ETag is weak, and there is no Last-Modified
//	nolength     the body ends with the connection, without Content-Length
//	chunked      the body is chunked, without Content-Length
//	gzip         the body is gzip encoded for transport
//	empty        the body is empty
//	unavailable  503
//	flaky        503 on three requests of four
//	busy         429 with Retry-After: after
//	notfound     404
//	page         200 and a web page in place of the content
//	html         the Content-Type is that of a web page, and the content is not
//	loop         a redirect to a path that redirects back
//	redirect     a redirect to the URL in to
//	basic        401 without the user "user" and the password "password"
//	bearer       401 without the bearer token "token"
package fetchtest
