package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkTrack updates 50 images in one file from documents on loopback: those of all recorded vendors, and a product
// file of more than 5 MiB. Each update finds and writes new values for all images.
func BenchmarkTrack(b *testing.B) {
	program := buildProgram(b)
	const images = 50
	var cases []vendorCase
	for _, c := range readVendorCases(b) {
		if c.Result == "update" && c.Expect.Checksum != "" {
			cases = append(cases, c)
		}
	}
	base := serveVendors(b, cases)
	vendorImages := trackSettings
	for i := range images {
		c := cases[i%len(cases)]
		vendorImages += c.declaration(fmt.Sprintf("image-%d", i), base, c.Pinned.URL, c.Pinned.Checksum)
	}
	product := largeProduct(b)
	productImages := trackSettings
	for i := range images {
		productImages += product.declaration(fmt.Sprintf("image-%d", i), "", product.Pinned.URL, product.Pinned.Checksum)
	}
	for _, documents := range []struct{ name, declared string }{{"vendors", vendorImages}, {"product", productImages}} {
		b.Run(documents.name, func(b *testing.B) {
			file := filepath.Join(b.TempDir(), "images.yaml")
			var ours []cost
			for b.Loop() {
				if err := os.WriteFile(file, []byte(documents.declared), 0o644); err != nil {
					b.Fatal(err)
				}
				ours = append(ours, measure(b, exec.Command(program, "update", filepath.Dir(file), "--keys-dir", filepath.Join(vendors, "keys"))))
			}
			if got, err := os.ReadFile(file); err != nil || string(got) == documents.declared {
				b.Fatalf("nothing changed (%v)", err)
			}
			if result := runUpdate(b, filepath.Dir(file)); result.Count("unchanged") != images {
				b.Fatalf("only %d of %d images are up to date", result.Count("unchanged"), images)
			}
			m := median(ours)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(m.wall.Seconds(), "s")
			b.ReportMetric(m.cpu.Seconds(), "cpu-s")
		})
	}
}

// largeProduct serves an index and a product file, and returns an image of it.
func largeProduct(b *testing.B) vendorCase {
	var products []string
	for p := range 30 {
		var versions []string
		for serial := 20250101; serial < 20250101+330; serial++ {
			items := []string{fmt.Sprintf(`"disk1.img": {"ftype": "disk1.img", "path": "release-%d/server.img", "sha256": "%064d", "size": 600000000}`, serial, serial)}
			for n := range 3 {
				items = append(items, fmt.Sprintf(`"other%d": {"ftype": "tar.gz", "path": "release-%d/%d.tar.gz", "sha256": "%064d", "size": 1}`, n, serial, n, serial))
			}
			versions = append(versions, fmt.Sprintf(`"%d": {"items": {%s}, "label": "release"}`, serial, strings.Join(items, ", ")))
		}
		products = append(products, fmt.Sprintf(`"product-%d": {"arch": "amd64", "versions": {%s}}`, p, strings.Join(versions, ", ")))
	}
	documents := map[string]string{
		"/streams/v1/index.json": `{"format": "index:1.0", "index": {"a": {"datatype": "image-downloads", "format": "products:1.0", "path": "products.json", "products": ["product-7"]}}}`,
		"/products.json":         fmt.Sprintf(`{"format": "products:1.0", "products": {%s}}`, strings.Join(products, ", ")),
	}
	if size := len(documents["/products.json"]); size < 5<<20 || size > 7<<20 {
		b.Fatalf("the product file has %d bytes", size)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, documents[r.URL.Path])
	}))
	b.Cleanup(server.Close)
	c := vendorCase{Track: fmt.Appendf(nil, `{"simplestreams": {"url": "%s", "product": "product-7", "item": "disk1.img"}}`, server.URL)}
	c.Pinned.URL, c.Pinned.Checksum = server.URL+"/release-20250102/server.img", "sha256:"+strings.Repeat("1", 64)
	return c
}
