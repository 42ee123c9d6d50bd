package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// TestValidAddressesAreNotRefused: what the validation of a configuration accepts as an address, a download does not reject
// before its first request.
func TestValidAddressesAreNotRefused(t *testing.T) {
	var addresses []string
	for _, scheme := range []string{"http", "https", "s3", "file", "s3::https", "s3::s3", "s3::file", "ftp", "git::https", ""} {
		for _, host := range []string{"", "example.com", "example.com:8000", "bucket", "Bucket_1", "b", "localhost", "127.0.0.1", "[::1]", "user@bucket", "u:p@bucket"} {
			for _, path := range []string{"", "/", "//", "/a", "/a/", "/a//b", "//a", "/bucket/a//b", "/bucket//a", "/bucket/", "/b/a", "/../a", "/%2F/a", "/a%zz", "/a b"} {
				for _, query := range []string{"", "?a=b", "#f"} {
					addresses = append(addresses, scheme+"://"+host+path+query)
				}
			}
		}
	}
	addresses = append(addresses, "file:a", "https:a", "https:/a", "/a", "a", "s3:bucket/a")
	var config strings.Builder
	config.WriteString("settings: {allowLoopbackSources: true}\nimages:\n")
	for i, a := range addresses {
		fmt.Fprintf(&config, "  i%06d: {source: {download: {url: \"https://example.com/a\", checksumURL: %q}}}\n", i, a)
	}
	r := load.NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(config.String())}}})
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	valid := 0
	for i, a := range addresses {
		image, declared := r.Config.Images[fmt.Sprintf("i%06d", i)]
		if !declared {
			continue
		}
		valid++
		client := fetch.Client{AllowAnyFile: true, AllowLoopback: true}
		_, err := client.LookUpChecksum(canceled, DownloadRequest(image))
		if e, refused := errors.AsType[*fetch.Error](err); refused && e.Class == fetch.BadConfig {
			t.Errorf("%s: %v", a, err)
		}
	}
	// These are valid in both.
	for _, a := range []string{"https://example.com/a//b", "https://example.com", "http://127.0.0.1//a", "s3://bucket/a//b", "s3::https://example.com/bucket//a", "file:///a"} {
		i := slices.Index(addresses, a)
		if _, declared := r.Config.Images[fmt.Sprintf("i%06d", i)]; !declared {
			t.Errorf("%s is not valid", a)
		}
	}
	if valid < 100 || valid > len(addresses)/2 {
		t.Errorf("%d of %d addresses are valid", valid, len(addresses))
	}
}
