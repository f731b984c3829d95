//! Python servers that the tests start as applications.

/// Responds after two seconds, logs the request immediately, and exits immediately at SIGTERM.
pub(super) const SLOW_SERVER: &str = "import http.server,sys,time\n\
class H(http.server.BaseHTTPRequestHandler):\n\
\x20 protocol_version='HTTP/1.1'\n\
\x20 def do_GET(self):\n\
\x20  sys.stdout.write('got '+self.path+'.\\n'); sys.stdout.flush()\n\
\x20  time.sleep(2)\n\
\x20  self.send_response(200); self.send_header('content-length','4'); self.end_headers(); self.wfile.write(b'done')\n\
\x20 def log_message(self,*a): pass\n\
class S(http.server.ThreadingHTTPServer):\n\
\x20 request_queue_size=128\n\
S(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n";

/// Responds with its version; `/slow` waits until a file exists. It exits immediately at SIGTERM, and aborts
/// its requests.
pub(super) const VERSIONED_SERVER: &str = "import http.server,os,sys,time\n\
class H(http.server.BaseHTTPRequestHandler):\n\
\x20 protocol_version='HTTP/1.1'\n\
\x20 def do_GET(self):\n\
\x20  self.rfile.read(int(self.headers.get('content-length',0)))\n\
\x20  sys.stdout.write('got '+self.path+'.\\n'); sys.stdout.flush()\n\
\x20  while self.path=='/slow' and not os.path.exists(sys.argv[3]): time.sleep(.02)\n\
\x20  self.send_response(200); self.send_header('content-length','2'); self.end_headers(); self.wfile.write(sys.argv[2].encode())\n\
\x20 do_POST=do_GET\n\
\x20 def log_message(self,*a): pass\n\
http.server.ThreadingHTTPServer(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n";

/// Listens after two seconds, and is ready after two more.
pub(super) const LATE_SERVER: &str = "import http.server,sys,time\n\
time.sleep(2)\n\
started=time.time()\n\
class H(http.server.BaseHTTPRequestHandler):\n\
\x20 def do_GET(self):\n\
\x20  ready=time.time()-started>2\n\
\x20  self.send_response(200 if ready else 503); self.end_headers()\n\
\x20 def log_message(self,*a): pass\n\
http.server.ThreadingHTTPServer(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n";

/// Starts a server as daemons do, which clears its environment as nginx does with its title, and waits until it
/// listens.
pub(super) const DAEMON_SCRIPT: &str = "import os,socket,sys,time\n\
port=sys.argv[1]\n\
if os.fork()==0:\n\
\x20 os.setsid()\n\
\x20 if os.fork()==0: os.execve(sys.executable,[sys.executable,'-m','http.server',port,'--bind','127.0.0.1'],{})\n\
\x20 os._exit(0)\n\
while True:\n\
\x20 try: socket.create_connection(('127.0.0.1',int(port))).close(); break\n\
\x20 except OSError: time.sleep(.02)\n\
if sys.argv[2]=='stay': time.sleep(600)\n";
