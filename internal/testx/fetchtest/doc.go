// Package fetchtest is an HTTP origin that misbehaves on request, for the tests of
// everything that downloads.
//
// A Server serves contents at paths, as well as it can: with Range, If-Range,
// If-Match, an ETag and a date. Faults make it do worse. They are added to a path
// in code, or asked for by the address itself, so that a scenario in a file needs
// no code:
//
//	http://127.0.0.1:PORT/image.raw?fault=cut&at=4096&times=1
//
// Several faults are several fault=… parameters; at, times, skip, to and after
// belong to all of them, or, given as often as fault, to each in its turn. Every
// fault happens on times GET requests for its path (for its address, with faults in
// the address) behind the first skip ones, and without times on all of them. A HEAD
// request is always answered 405, because nothing of ours may need one.
//
//	cut          the connection ends after at bytes of the body
//	reset        the same, but with RST
//	stall        nothing comes after at bytes
//	drip         after at bytes they come one by one, 20 in a second
//	silent       there is no answer at all
//	flip         the byte of the content at offset at is another one
//	long         Content-Length promises at bytes more than come
//	short        Content-Length promises at bytes less than come
//	norange      Range is ignored
//	badrange     Content-Range begins one byte late
//	changing     the ETag is another one with each request
//	changed      the content and its ETag are others from the second request on
//	novalidator  there is neither ETag nor Last-Modified
//	weak         the ETag is weak, and there is no Last-Modified
//	nolength     the body ends with the connection, its length is not told
//	chunked      the body is chunked, its length is not told
//	gzip         the body is gzip encoded for transport
//	empty        the body is empty
//	unavailable  503
//	flaky        503 on three requests of four
//	busy         429 with Retry-After: after
//	notfound     404
//	page         200 and a web page in place of the content
//	html         the content is said to be a web page, which it is not
//	loop         a redirect to a path that redirects back
//	redirect     a redirect to the address to
//	basic        401 without the user "user" and the password "password"
//	bearer       401 without the bearer token "token"
package fetchtest
