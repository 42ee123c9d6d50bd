package schema

// Track is where the vendor of an image publishes its versions. Exactly one of the first four fields is set.
type Track struct {
	Simplestreams *TrackSimplestreams
	CoreOS        *TrackCoreOS
	Listing       *TrackListing
	HTTP          *TrackHTTP

	Keys      string // name of the folder below --keys-dir with the keys of the lists; "": the keys of Verify
	Signature string // address of the signature of a list, or its name beside the list, with "{file}"; "": as for Verify
}

// TrackSimplestreams is a product of an image server with simplestreams.
type TrackSimplestreams struct {
	URL     string // of the folder that has streams/v1/index.json
	Product string
	Item    string // key or file type of the file
}

// TrackCoreOS is a stream of Fedora CoreOS.
type TrackCoreOS struct {
	URL      string // of the metadata of the stream
	Arch     string
	Artifact string
	Format   string // "": the artifact has only one format
}

// TrackListing is a folder on a web server.
type TrackListing struct {
	URL      string
	Match    string // a regular expression with at most one slash and at least one group
	Checksum string // name of the checksum list, with "{file}" for the name of the file
}

// TrackHTTP is the address of the image itself. Download.ChecksumURL is set.
type TrackHTTP struct{}
