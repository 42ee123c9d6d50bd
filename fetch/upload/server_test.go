package upload

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

func TestProtocol(t *testing.T) {
	r := newFixture(t)
	a := r.request("OPTIONS", Path, nil, "Tus-Resumable: ")
	a.want(t, 204, "")
	if a.header.Get("Tus-Version") != "1.0.0" || !strings.Contains(a.header.Get("Tus-Extension"), "checksum") || !strings.HasPrefix(a.header.Get("Tus-Checksum-Algorithm"), "sha1") {
		t.Errorf("the response to OPTIONS is %v", a.header)
	}
	a = r.request("POST", Path, nil, "Tus-Resumable: 0.2.2", "Upload-Length: 1024", named)
	a.want(t, 412, "Tus-Resumable: 1.0.0")
	if a.header.Get("Tus-Version") != "1.0.0" {
		t.Error("the response does not contain the supported versions")
	}
	refused := []struct {
		status  int
		words   string
		headers []string
	}{
		{400, "then pad it: truncate -s %512 FILE", []string{"Upload-Length: 1000", named}},
		{400, "the file is empty", []string{"Upload-Length: 0", named}},
		{400, "at most 64 TiB", []string{"Upload-Length: 70368744178176", named}},
		{400, "at most 64 TiB", []string{"Upload-Length: 9223372036854775296", named}},
		{400, "number of bytes", []string{"Upload-Length: -512", named}},
		{400, "number of bytes", []string{"Upload-Length: 99999999999999999999", named}},
		{400, "Upload-Defer-Length: 1", []string{named}},
		{400, "must be 1", []string{"Upload-Defer-Length: 2", named}},
		{400, "name of the image is missing", []string{"Upload-Length: 512"}},
		{400, "not base64", []string{"Upload-Length: 512", "Upload-Metadata: name parrot!"}},
		{400, "twice", []string{"Upload-Length: 512", named + ",name cGFycm90"}},
		{400, "name", []string{"Upload-Length: 512", "Upload-Metadata: name " + base64.StdEncoding.EncodeToString([]byte("../x"))}},
		{400, "sha512", []string{"Upload-Length: 512", named + ",sha512 YWJj"}},
		{400, "at most 4096", []string{"Upload-Length: 512", named + ",x " + strings.Repeat("YWJj", 2000)}},
		{404, "no image macaw", []string{"Upload-Length: 512", "Upload-Metadata: name bWFjYXc="}},
	}
	for _, c := range refused {
		r.request("POST", Path, nil, c.headers...).want(t, c.status, c.words)
	}
	r.request("PUT", Path, nil).want(t, 405, "POST")
	r.request("HEAD", Path+"/nothing", nil).want(t, 404, "")
	r.patch(Path+"/nothing", "0", []byte("x")).want(t, 404, "no such upload")
	r.request("DELETE", Path+"/nothing", nil).want(t, 404, "")
	if len(r.sessions.list()) != 0 {
		t.Errorf("the uploads are %v", r.sessions.list())
	}
}

func TestUploadInSeveralRequests(t *testing.T) {
	r := newFixture(t)
	want := testImage(1, 3<<20+1024)
	at := r.create(fmt.Sprint(len(want)))
	r.request("POST", Path, nil, "Upload-Length: 1024", named).want(t, 409, at)

	r.patch(at, "0", nil, "Content-Type: text/plain").want(t, 415, bodyType)
	r.patch(at, "0", want[:1024], "Content-Encoding: gzip").want(t, 415, "without a Content-Encoding")
	r.patch(at, "512", want[512:1024]).want(t, 409, "the upload has 0 bytes")
	r.patch(at, "", want[:10]).want(t, 400, "Upload-Offset")
	r.patch(at, "0", append(want, 0)).want(t, 413, "are missing")
	r.patch(at, "0", want[:10], "Upload-Length: 512").want(t, 400, "was 3146752 before")
	r.patch(at, "0", want[:10], "Upload-Checksum: md5 YWJj").want(t, 400, "sha1,sha256,sha512")
	wrong := sha1.Sum([]byte("other"))
	r.patch(at, "0", want[:10], "Upload-Checksum: sha1 "+base64.StdEncoding.EncodeToString(wrong[:])).want(t, 460, "no byte of it was appended")
	r.patch(at, "0", make([]byte, 100), "Upload-Zeros: 100").want(t, 400, "must not have a body")

	right := sha1.Sum(want[:1000])
	a := r.patch(at, "0", want[:1000], "Upload-Checksum: sha1 "+base64.StdEncoding.EncodeToString(right[:]))
	a.want(t, 204, "")
	if expires, err := http.ParseTime(a.header.Get("Upload-Expires")); a.header.Get("Upload-Offset") != "1000" || err != nil || time.Until(expires) < 23*time.Hour {
		t.Errorf("the response to PATCH has %v", a.header)
	}
	a = r.request("HEAD", at, nil)
	a.want(t, 200, "")
	if a.header.Get("Upload-Offset") != "1000" || a.header.Get("Upload-Length") != fmt.Sprint(len(want)) || "Upload-Metadata: "+a.header.Get("Upload-Metadata") != named {
		t.Errorf("the response to HEAD has %v", a.header)
	}
	// Some clients can send only POST requests, and some do not know the length of a body.
	a = r.request("POST", at, bytes.NewReader(want[1000:2000]), "X-HTTP-Method-Override: PATCH", "Content-Type: "+bodyType, "Upload-Offset: 1000")
	a.want(t, 204, "")
	r.request("PATCH", at, io.MultiReader(bytes.NewReader(want[2000:])), "Content-Type: "+bodyType, "Upload-Offset: 2000").want(t, 204, "")
	r.wantImage(want)

	// A client repeats a request because it did not receive the response.
	a = r.request("HEAD", at, nil)
	a.want(t, 200, "")
	if a.header.Get("Upload-Offset") != fmt.Sprint(len(want)) {
		t.Errorf("after the end, the response to HEAD is %v", a.header)
	}
	r.patch(at, fmt.Sprint(len(want)), nil).want(t, 204, "")
	r.patch(at, "0", want).want(t, 409, "the image is ready")
	r.request("DELETE", at, nil).want(t, 409, "the image is ready")
	var i info
	if json.Unmarshal(r.request("GET", at, nil).body, &i) != nil || i.State != stateDone {
		t.Errorf("the response to GET is %+v", i)
	}
}

func TestCreationWithUploadAndDeferredLength(t *testing.T) {
	r := newFixture(t)
	want := testImage(2, 2<<20)
	r.request("POST", Path, bytes.NewReader(want[:777]), "Upload-Defer-Length: 1", named, "Content-Type: "+bodyType, "Content-Encoding: br").want(t, 415, "without a Content-Encoding")
	a := r.request("POST", Path, bytes.NewReader(want[:777]), "Upload-Defer-Length: 1", named, "Content-Type: "+bodyType)
	a.want(t, 201, "")
	at := a.header.Get("Location")
	if a.header.Get("Upload-Offset") != "777" {
		t.Errorf("the response has %v", a.header)
	}
	if a = r.request("HEAD", at, nil); a.header.Get("Upload-Defer-Length") != "1" || a.header.Get("Upload-Length") != "" {
		t.Errorf("the response to HEAD is %v", a.header)
	}
	r.patch(at, "777", want[777:]).want(t, 204, "")
	r.patch(at, fmt.Sprint(len(want)), nil, "Upload-Length: 512").want(t, 400, "were already received")
	// A rejected request must not change the length of the image.
	r.patch(at, "777", nil, fmt.Sprintf("Upload-Length: %d", len(want))).want(t, 409, "the upload has")
	r.request("HEAD", at, nil).want(t, 200, "")
	want = append(want, testImage(3, 1<<20)...)
	r.patch(at, fmt.Sprint(2<<20), want[2<<20:]).want(t, 204, "")
	r.patch(at, fmt.Sprint(len(want)), nil, fmt.Sprintf("Upload-Length: %d", len(want))).want(t, 204, "")
	r.wantImage(want)
}

func TestUploadZeros(t *testing.T) {
	r := newFixture(t)
	want := make([]byte, 5<<20)
	copy(want[100:], "something")
	at := r.create(fmt.Sprint(len(want)))
	r.patch(at, "0", nil, "Upload-Zeros: 6000000").want(t, 413, "are missing")
	r.patch(at, "0", want[:200]).want(t, 204, "")
	r.patch(at, "200", nil, fmt.Sprintf("Upload-Zeros: %d", len(want)-200)).want(t, 204, "")
	r.wantImage(want)
	if c := r.disk.Stat(parrot); c.RealSize > 1<<20 {
		t.Errorf("%d bytes are allocated", c.RealSize)
	}
}

func TestTerminate(t *testing.T) {
	r := newFixture(t)
	at := r.create("1048576")
	r.patch(at, "0", make([]byte, 1000)).want(t, 204, "")
	r.request("DELETE", at, nil).want(t, 204, "")
	r.wantEmptyDisk()
	r.request("HEAD", at, nil).want(t, 410, "")
	r.patch(at, "1000", nil).want(t, 410, "terminated")
	if err := r.stopJob(); !IsDiscarded(err) {
		t.Errorf("the job ended with %v", err)
	}
	r.create("1048576") // another upload can be created again
}

func TestInvalidImageEndsUpload(t *testing.T) {
	web := append([]byte("<!DOCTYPE html><html>"), make([]byte, 1003)...)
	qcow := append([]byte("QFI\xfb\x00\x00\x00\x09"), make([]byte, 1016)...)
	sum := sha512.Sum512([]byte("other"))
	for words, c := range map[string]struct {
		metadata string
		body     io.Reader
	}{
		"checksum mismatch": {named + ",sha512 " + base64.StdEncoding.EncodeToString([]byte(hex.EncodeToString(sum[:]))), bytes.NewReader(make([]byte, 1024))},
		"web page":          {named, bytes.NewReader(web)},
		"version 9":         {named, bytes.NewReader(qcow)},
	} {
		t.Run(words, func(t *testing.T) {
			r := newFixture(t)
			at := r.create("1024", c.metadata)
			a := r.request("PATCH", at, c.body, "Content-Type: "+bodyType, "Upload-Offset: 0")
			a.want(t, 422, words)
			r.wantEmptyDisk()
			r.request("HEAD", at, nil).want(t, 422, "")
			if i := r.request("GET", at, nil); !strings.Contains(string(i.body), `"failed"`) {
				t.Errorf("the response to GET is %s", i.body)
			}
		})
	}
}

// A request that is longer than the rest of the image does not complete it, whether its length is known or not.
func TestTooLongRequestKeepsTheUpload(t *testing.T) {
	r := newFixture(t)
	want := testImage(5, 1<<20+1024)
	longer := append(bytes.Clone(want), "more"...)
	at := r.create(fmt.Sprint(len(want)))
	r.patch(at, "0", longer).want(t, 413, "are missing")
	if a := r.request("HEAD", at, nil); a.header.Get("Upload-Offset") != "0" {
		t.Errorf("the response to HEAD has %v", a.header)
	}
	a := r.request("PATCH", at, io.MultiReader(bytes.NewReader(longer)), "Content-Type: "+bodyType, "Upload-Offset: 0") // of unknown length
	a.want(t, 413, "the rest of the image")
	last := len(want) - 1
	if a := r.request("HEAD", at, nil); a.header.Get("Upload-Offset") != fmt.Sprint(last) {
		t.Errorf("the response to HEAD has %v", a.header)
	}
	r.patch(at, fmt.Sprint(last), want[last:]).want(t, 204, "")
	r.wantImage(want)
}

// A browser repeats a request by itself. The daemon may have received some of its bytes, or all.
func TestRepeatedRequestContinuesTheUpload(t *testing.T) {
	r := newFixture(t)
	want := append(append(testImage(6, 2<<20), make([]byte, 1<<20)...), "the end"...)
	want = append(want, make([]byte, 512-len(want)%512)...)
	at := r.create(fmt.Sprint(len(want)))
	repeat := func(from, to int, headers ...string) response {
		return r.patch(at, fmt.Sprint(from), want[from:to], append(headers, "Upload-Overlap: 1")...)
	}
	appended := func(a response, offset int) {
		t.Helper()
		a.want(t, 204, "")
		if got := a.header.Get("Upload-Offset"); got != fmt.Sprint(offset) {
			t.Errorf("the offset is %s, want %d", got, offset)
		}
	}
	appended(repeat(0, 1000), 1000)
	r.patch(at, "0", want[:2000]).want(t, 409, "the upload has 1000 bytes")
	repeat(0, 999).want(t, 409, "the upload has 1000 bytes") // not even all of what it has
	repeat(1001, 2000).want(t, 409, "the upload has 1000 bytes")
	appended(repeat(0, 1000), 1000)
	sum := sha1.Sum(want[500:3000])
	appended(repeat(500, 3000, "Upload-Checksum: sha1 "+base64.StdEncoding.EncodeToString(sum[:])), 3000)
	appended(repeat(0, 2<<20), 2<<20)
	for _, zeros := range []int{1000, 1 << 20, 1 << 20} {
		appended(r.patch(at, fmt.Sprint(2<<20), nil, fmt.Sprint("Upload-Zeros: ", zeros), "Upload-Overlap: 1"), 2<<20+zeros)
	}
	for range 2 { // the image is ready before the second one
		appended(repeat(3<<20, len(want)), len(want))
	}
	r.patch(at, fmt.Sprint(3<<20), want[3<<20:]).want(t, 409, "the image is ready")
	r.wantImage(want)
}

// Zeros cost the client and the disk nothing, but the daemon hashes each of them.
func TestZerosOfAnUploadWithoutLengthAreLimited(t *testing.T) {
	r := newFixture(t)
	want := make([]byte, 3<<20)
	copy(want, "something")
	a := r.request("POST", Path, bytes.NewReader(want[:512]), "Upload-Defer-Length: 1", named, "Content-Type: "+bodyType)
	a.want(t, 201, "")
	at := a.header.Get("Location")
	for _, zeros := range []string{"9223372036854775807", "1099511627776", "1099511627265"} {
		r.patch(at, "512", nil, "Upload-Zeros: "+zeros).want(t, 413, "at most 1 TiB: send Upload-Length first")
	}
	r.patch(at, "512", nil, fmt.Sprintf("Upload-Zeros: %d", len(want)-512)).want(t, 204, "")
	r.patch(at, fmt.Sprint(len(want)), nil, fmt.Sprintf("Upload-Length: %d", len(want))).want(t, 204, "")
	r.wantImage(want)
}

func TestFullDisk(t *testing.T) {
	r := newFixture(t)
	space, err := r.disk.Space()
	if err != nil {
		t.Fatal(err)
	}
	a := r.request("POST", Path, nil, fmt.Sprintf("Upload-Length: %d", (space.Free/512+1<<30)*512), named)
	a.want(t, 413, "not enough space")
	r.wantEmptyDisk()
}

// isServed reports whether a request uses the partial file of the upload.
func (r *fixture) isServed(at string) bool { return len(r.sessions.find(path.Base(at)).part) == 0 }

// TestInterruptedUploadTakesPrecedence checks that an interrupted upload has precedence over a
// created one, and that an upload without a job is dropped when its client disconnects.
func TestInterruptedUploadTakesPrecedence(t *testing.T) {
	s := NewSessions()
	m := metadata{Name: parrot.Name}
	one, err := s.create(m, 512)
	if err != nil {
		t.Fatal(err)
	}
	left, err := s.Begin(t.Context(), parrot, disk.PartSource{Kind: model.PartFromUpload, ETag: "left", Size: 1024})
	if err != nil || left.ID != "left" || left.Name != parrot.Name || one.outcome() == nil {
		t.Errorf("the interrupted upload is %+v, %v; the created one ended with %v", left, err, one.outcome())
	}
	s.drop(one)
	if _, err := s.create(m, 512); err == nil {
		t.Error("an upload was created in addition to the interrupted one")
	}
	s.End(left, nil, false)
	one, err = s.create(m, 512)
	if err != nil {
		t.Fatal(err)
	}
	s.drop(one)
	if _, err := s.Begin(t.Context(), parrot, disk.PartSource{ID: "a hash"}); !IsDiscarded(err) {
		t.Errorf("a job without an upload: %v", err)
	}
	if one, err = s.create(m, 512); err != nil {
		t.Fatal(err)
	}
	if now, err := s.Begin(t.Context(), parrot, disk.PartSource{}); now != one || err != nil {
		t.Errorf("the job got %+v, %v", now, err)
	}
	s.drop(one)
	if now := s.find(one.ID); now != one {
		t.Error("the upload of a job is not found")
	}
}

// TestConcurrentUploadLimit checks that a node has at most maxUploads concurrent uploads.
func TestConcurrentUploadLimit(t *testing.T) {
	s := NewSessions()
	for n := range maxUploads {
		if _, err := s.create(metadata{Name: fmt.Sprint("image", n)}, 512); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.create(metadata{Name: "one-more"}, 512); err == nil || !strings.Contains(err.Error(), "4 uploads are in progress (image0, image1, image2, image3)") {
		t.Errorf("an upload over the limit: %v", err)
	}
}
