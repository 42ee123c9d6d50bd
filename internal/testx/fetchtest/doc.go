// Package fetchtest is an HTTP server with faults on request, for tests of downloads.
//
// A Server serves contents at paths, by default without faults: with Range, If-Range, If-Match, an
// ETag and a date. A fault is added to a path in code, or requested in the URL, so that a scenario
// file needs no code:
//
//	http://127.0.0.1:PORT/image.raw?fault=cut&at=4096&times=1
//
// The parameter fault may occur several times. The parameters at, times, skip, to and after apply to
// all faults. If such a parameter occurs as often as fault, its values apply to the faults in the
// same order. A fault affects GET requests for its path (or for its URL, if the URL requests it):
// skip requests are not affected, then the number of requests in times is affected, or all further
// requests if times is missing. The response to HEAD is always 405, because the program must not need
// HEAD.
//
//	cut          the connection ends after at bytes of the body
//	reset        like cut, but with RST
//	stall        the server sends nothing after at bytes
//	drip         after at bytes, one byte at a time, 20 bytes per second
//	silent       the server sends no response
//	flip         one byte is changed, at the offset in at
//	long         Content-Length is greater than the length of the body, by at
//	short        Content-Length is less than the length of the body, by at
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
//	html         the Content-Type is that of a web page, but not the content
//	loop         a redirect to a path that redirects back
//	redirect     a redirect to the URL in to
//	basic        401 without the user "user" and the password "password"
//	bearer       401 without the bearer token "token"
package fetchtest
