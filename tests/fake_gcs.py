"""A small in-memory Google Cloud Storage on 127.0.0.1, for tests.

The JSON API calls that gcsfs, TensorStore and google-cloud-storage make for an
Orbax checkpoint: flat buckets, object generations, no authentication.
"""

import itertools
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

BUCKET = re.compile(r'/storage/v1/b/([^/]+)')
LIST = re.compile(r'/storage/v1/b/([^/]+)/o')
OBJECT = re.compile(r'(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)')
MOVE = re.compile(r'/storage/v1/b/([^/]+)/o/([^/]+)/moveTo/o/([^/]+)')
UPLOAD = re.compile(r'/upload/storage/v1/b/([^/]+)/o')


class Handler(BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True

  def log_message(self, *args):
    pass

  def handle_call(self):
    url = urlsplit(self.path)
    query = {key: value[-1] for key, value in parse_qs(url.query).items()}
    body = self.read_body()
    with self.server.lock:
      self.server.calls.append((self.command, self.path))
      try:
        status, reply, headers = self.route(url.path, query, body)
      except KeyError:
        status, reply, headers = 404, error(404), {}
    if not isinstance(reply, bytes):
      headers['Content-Type'] = 'application/json'
      reply = json.dumps(reply).encode()
    self.send_response(status)
    for key, value in headers.items():
      self.send_header(key, str(value))
    if status not in (204, 304):
      self.send_header('Content-Length', str(len(reply)))
    self.end_headers()
    if status not in (204, 304):
      self.wfile.write(reply)

  do_GET = do_POST = do_PUT = do_DELETE = handle_call

  def read_body(self):
    if 'chunked' not in self.headers.get('Transfer-Encoding', '').lower():
      return self.rfile.read(int(self.headers.get('Content-Length') or 0))
    parts = []
    while size := int(self.rfile.readline(), 16):
      parts.append(self.rfile.read(size))
      self.rfile.readline()
    self.rfile.readline()
    return b''.join(parts)

  def route(self, path, query, body):
    """Returns the status, the body and the headers of one call's answer."""
    server, verb = self.server, self.command
    if verb != 'GET' and (match := UPLOAD.fullmatch(path)):
      uploads = server.uploads
      if query['uploadType'] == 'media':
        return self.put(match[1], query['name'], body, query)
      if query['uploadType'] == 'multipart':
        mark = b'\n' + body.partition(b'\n')[0]
        parts = (b'\n' + body).split(mark)[1:3]
        about, data = (part.partition(b'\n\n')[2] for part in parts)
        return self.put(match[1], json.loads(about)['name'], data, query)
      if 'upload_id' not in query:
        key = str(next(server.counter))
        name = query.get('name') or json.loads(body)['name']
        uploads[key] = (name, bytearray(), query)
        place = f'{server.url}{path}?uploadType=resumable&upload_id={key}'
        return 200, {}, {'Location': place}
      name, data, first = uploads[query['upload_id']]
      data += body
      total = self.headers.get('Content-Range', f'/{len(data)}').split('/')[1]
      if total == '*' or len(data) < int(total):
        last = {'Range': f'bytes=0-{len(data) - 1}'} if data else {}
        return 308, b'', last
      del uploads[query['upload_id']]
      return self.put(match[1], name, bytes(data), first)
    if verb == 'POST' and (match := MOVE.fullmatch(path)):
      objects, name = server.buckets[match[1]], unquote(match[2])
      return self.put(match[1], unquote(match[3]), objects.pop(name)[0], {})
    if match := OBJECT.fullmatch(path):
      objects, name = server.buckets[match[1]], unquote(match[2])
      data, generation, _ = objects[name]
      if failed := unmet(objects, name, query):
        return failed, error(failed), {}
      if verb == 'DELETE':
        del objects[name]
        return 204, b'', {}
      if query.get('alt') != 'media':
        return 200, self.describe(match[1], name), {}
      headers = {'X-Goog-Generation': generation}
      span = re.fullmatch(r'bytes=(\d*)-(\d*)', self.headers.get('Range', ''))
      if not span:
        return 200, data, headers
      start = int(span[1]) if span[1] else max(0, len(data) - int(span[2]))
      stop = int(span[2]) + 1 if span[1] and span[2] else len(data)
      stop = min(stop, len(data))
      if start >= stop:
        return 416, b'', {'Content-Range': f'bytes */{len(data)}'}
      headers['Content-Range'] = f'bytes {start}-{stop - 1}/{len(data)}'
      return 206, data[start:stop], headers
    if match := LIST.fullmatch(path):
      return 200, self.list(match[1], query), {}
    match = BUCKET.fullmatch(path)
    name = match[1] if match else None
    if name not in server.buckets:  # and so for a call that is not known here
      raise KeyError(name)
    return 200, {'kind': 'storage#bucket', 'name': name, 'location': 'US'}, {}

  def put(self, bucket, name, data, query):
    objects = self.server.buckets[bucket]
    if failed := unmet(objects, name, query):
      return failed, error(failed), {}
    objects[name] = (data, next(self.server.counter), time.time())
    return 200, self.describe(bucket, name), {}

  def describe(self, bucket, name):
    data, generation, when = self.server.buckets[bucket][name]
    stamp = time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(when))
    link = f'/download/storage/v1/b/{bucket}/o/{quote(name, "")}?alt=media'
    return {
      'kind': 'storage#object',
      'bucket': bucket,
      'name': name,
      'generation': str(generation),
      'metageneration': '1',
      'size': str(len(data)),
      'timeCreated': stamp,
      'updated': stamp,
      'mediaLink': self.server.url + link,
    }

  def list(self, bucket, query):
    prefix, mark = query.get('prefix', ''), query.get('delimiter')
    start, end = query.get('startOffset', ''), query.get('endOffset', '')
    found = {}  # an object's name, or a folder's with its delimiter
    for name in sorted(self.server.buckets[bucket]):
      if (
        name.startswith(prefix) and start <= name and not (end and name >= end)
      ):
        head, cut, _ = name[len(prefix) :].partition(mark or '\0')
        found[prefix + head + cut] = bool(cut)
    found = {k: v for k, v in found.items() if k > query.get('pageToken', '')}
    page = list(found)[: int(query.get('maxResults', 1000))]
    more = (
      {'nextPageToken': page[-1]} if page and len(page) < len(found) else {}
    )
    items = [self.describe(bucket, key) for key in page if not found[key]]
    return {'items': items, 'prefixes': [k for k in page if found[k]]} | more


def unmet(objects, name, query):
  """The status for a generation condition that fails, and None if all hold."""
  generation = objects[name][1] if name in objects else 0
  if int(query.get('ifGenerationMatch', generation)) != generation:
    return 412
  if int(query.get('ifGenerationNotMatch', -1)) == generation:
    return 304
  return None


def error(code):
  return {'error': {'code': code, 'message': 'not found or unmet condition'}}


class FakeGcs(ThreadingHTTPServer):
  daemon_threads = True

  def __init__(self, *buckets, port=0):
    super().__init__(('127.0.0.1', port), Handler)
    self.buckets = {name: {} for name in buckets}
    self.uploads, self.calls, self.lock = {}, [], threading.Lock()
    self.counter = itertools.count(1)
    self.url = f'http://127.0.0.1:{self.server_port}'

  def handle_error(self, request, address):
    pass  # gcsfs drops the slower of two concurrent calls

  def __enter__(self):
    threading.Thread(target=self.serve_forever, daemon=True).start()
    return self

  def __exit__(self, *error):
    self.shutdown()
    self.server_close()
